"""What a calibration is made of, and what it gives: everything that a forecast of another job needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allpull.predict.calibration.measured import MeasuredRun
from allpull.predict.calibration.parameters import Floats, Parameters
from allpull.predict.job import Job
from allpull.predict.terms.compute import Compute
from allpull.predict.terms.input import Input
from allpull.predict.terms.lateness import Lateness
from allpull.predict.terms.periodic import Periodic
from allpull.schema.probes import AllreduceAnswer

ALIKE = 1.02  # times the samples of a rank in an epoch: samplers and short last batches make them differ by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Facts that a user states: the line rate between hosts, and the latency of a hop."""

    link_bytes_per_s: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """An all-reduce probe: its run id, its answer and how many hosts it ran on."""

    run: str
    answer: AllreduceAnswer
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Everything that a forecast of another job needs.

    ``job``: of the run with the most ranks, ``largest``. ``lead_s`` (draws, looks, buckets): before the last gradient
    of all ranks; ``balanced_lead_s``: before that of a usual rank. ``algorithms``: those that the data cannot tell
    apart, and ``algorithm`` (draws,) which of them each draw has. ``known_links``: whose rate is known. ``error``: how
    far the model is from the measured steps it was fitted to, relative. ``events``: what happens once per epoch.
    ``crowding``: ranks per host → work of a rank over that in ``largest``, (draws,): ranks of a host share its memory,
    and without accelerators its CPUs.
    """

    job: Job
    largest: MeasuredRun
    runs: Sequence[MeasuredRun]
    probes: Sequence[Probe]
    parameters: Parameters
    compute: Compute
    lateness: Lateness
    lead_s: Floats
    balanced_lead_s: Floats
    algorithms: tuple[str, ...]
    algorithm: NDArray[np.intp]
    known_links: frozenset[str]
    error: float = 0.0
    events: Mapping[str, Periodic] = field(default_factory=dict)
    crowding: Mapping[int, Floats] = field(default_factory=dict)
    input: Input | None = None
    notes: tuple[str, ...] = ()

    @property
    def are_whole(self) -> bool:
        """Whether an epoch of any run is known to have ended before the program did."""
        return any(run.epochs.are_whole for run in self.runs if run.epochs)

    @property
    def steps_are_equal(self) -> bool:
        """Whether epochs have as many steps on any number of ranks: their samples grow as the ranks do.

        Runs of at least two sizes tell it. Each rank passes over all of the data, or the program left its loader early.
        """
        each = {run.ranks: run.epochs.samples / run.ranks for run in self.runs if run.epochs and run.epochs.samples}
        return len(each) > 1 and max(each.values()) <= ALIKE * min(each.values())

    def samples_per_epoch(self, ranks: int) -> int | None:
        """Samples of an epoch over all of ``ranks`` ranks; None: not known."""
        samples = self.job.samples_per_epoch
        if samples is None or not self.steps_are_equal:
            return samples
        return round(samples * ranks / self.job.ranks) if self.are_whole else None
