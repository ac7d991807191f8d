"""What rules examine: one window, which rank made which wait in it, and the machine that it ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.exchange import NoExchange
from allpull.analyse.iterable_samples import IterableSamples
from allpull.analyse.same_samples import SameSamples
from allpull.analyse.statistics import MIN_POINTS, ratio_interval
from allpull.analyse.steps.grid import Floats, of_steps
from allpull.explain.candidate import MIN_SHARE
from allpull.explain.evidence.ddp_settings import DdpSettings
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.hosts.network import Network, network_of
from allpull.explain.evidence.hosts.transports import Transports
from allpull.explain.evidence.late.cpu_waiting import crowded_share
from allpull.explain.evidence.late.lateness import LateRanks, late_ranks
from allpull.explain.evidence.late.stalls import Stalls
from allpull.explain.evidence.loading.deliveries import Loading, late_by_pace, limited, loading_of
from allpull.explain.evidence.loading.file_access import FileAccess
from allpull.explain.evidence.loading.loader_pace import LoaderPace
from allpull.explain.evidence.start import Start
from allpull.replay.blame import Blame
from allpull.replay.engine import Replay, replay
from allpull.replay.useful import COMPUTE
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Bools, Window
from allpull.rundir.read.run import RunData
from allpull.units import show_steps

MORE_STEPS = 2  # than the mean rank: the last step may be recorded by some ranks only
SLOW_ON_CPUS = 0.08  # of a step: cores of one machine differ by up to 7 % over a run without a fault (real_faults.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRun:
    """Another run of the same training: its ranks, and samples/s of each (mean of the window).

    ``useful_s``: phase → seconds of computation per sample of a rank; ``useful_error``: of their sum, half of its 95 %
    interval divided by it.
    """

    run: str
    ranks: int
    samples_per_s: float
    useful_s: Mapping[str, float] = field(default_factory=dict)
    useful_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """What is known of a run beside its window and its machine.

    ``first`` (steps,): the first batch of an epoch. ``other_runs``: the reference runs of the same training.
    ``no_exchange``: its ranks are unrelated trainings. ``same_samples``: copies of a model that share them.
    ``iterable_samples``: None where the data set is none, or is not known. ``has_epochs``: batches come from passes
    over a loader, as far as is known. ``has_short_passes``: most of these have one batch. ``keeps_workers``: workers of
    loaders live on from one of these to the next. ``worker_counts`` (ranks,): of each rank; empty: not known.
    ``rollouts_s``: seconds per step of collecting rollouts, those of environments apart; both are part of forward.
    ``stalls``: what held up whole ranks. ``files``: what they read and wrote; None: not known. ``networks``: those in
    DDP; ``new_networks``: steps at which others are reduced than before; ``broadcasts_only_buffers``: all broadcasts in
    forward are of their buffers. ``transports``: of NCCL, by its log. ``start``: how the run was started, which decides
    how a remedy is worded. ``reducing_steps`` (ranks,): how many steps each rank made from its first reduction of
    gradients to its last; None: not known.
    """

    first: Bools
    other_runs: tuple[OtherRun, ...] = ()
    no_exchange: NoExchange | None = None
    same_samples: SameSamples | None = None
    iterable_samples: IterableSamples | None = None
    has_epochs: bool = True
    has_short_passes: bool = False
    keeps_workers: bool = False
    worker_counts: tuple[int, ...] = ()
    rollouts_s: Mapping[str, float] = field(default_factory=dict)
    stalls: Stalls = field(default_factory=Stalls)
    files: FileAccess | None = None
    networks: tuple[DdpSettings, ...] = ()
    new_networks: tuple[int, ...] = ()
    broadcasts_only_buffers: bool = False
    transports: Transports = field(default_factory=Transports)
    start: Start = field(default_factory=Start)
    reducing_steps: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts(Observed):
    """Everything that rules know about one run: what was observed, and what follows from it.

    ``replayed`` is the replay of ``window`` as recorded. ``blame`` is None where no rank can wait. ``loading``: loaders
    that are, or may be, at their limit; ``window`` has their deliveries where they are. ``simulation_error``: by which
    fraction of the measured time a replay with transfers of other steps misses it.
    """

    window: Window
    machine: Machine
    replayed: Replay
    late: LateRanks
    network: Network
    blame: Blame | None
    loading: Loading | None = None
    simulation_error: float = 0.0

    @property
    def workers(self) -> int | None:
        """Workers of the loader of each rank that timed what they made; None: they are not known."""
        return None if self.loading is None or self.loading.making is None else self.loading.limits.workers

    @property
    def may_repeat_samples(self) -> bool:
        """Whether several workers of a loader might each give all samples of their rank."""
        return self.iterable_samples is not None and self.iterable_samples.may_repeat

    @property
    def batch_s(self) -> Floats | float:
        """How long a worker of each rank takes for a batch, (ranks,); 0: they did not time it."""
        return 0.0 if self.loading is None or self.loading.making is None else self.loading.making.batch_s

    @property
    def buckets(self) -> int:
        """How many buckets of gradients a step reduces, also where it is not known when each of them was ready."""
        lane = self.window.reductions
        return max(0 if lane is None else lane.buckets, sum(one.buckets for one in self.networks))

    @property
    def gradients_bytes(self) -> tuple[int, ...]:
        """The size of each gradient of the one network in DDP, in the order of reduction; empty: not known."""
        return self.networks[0].gradients_bytes if len(self.networks) == 1 else ()

    @property
    def step_s(self) -> float:
        """The mean step of the job, replayed."""
        return self.replayed.total_s / max(1, self.window.steps.size)

    @property
    def has_uneven_steps(self) -> bool:
        """Whether a rank reduced gradients in more steps than the mean rank, by more than the end of a run explains."""
        steps = self.reducing_steps
        if steps is None:
            return False
        return bool(steps.max() - steps.mean() >= max(MORE_STEPS, MIN_SHARE * steps.mean()) and steps.any())

    @property
    def floor_s(self) -> float | None:
        """Lateness below which a rank cannot be distinguished from noise or clock errors, s per step.

        None: a single rank, or too few steps.
        """
        return max(self.late.floor_s, self.window.bound_s) if np.isfinite(self.late.floor_s) else None

    @property
    def is_too_short(self) -> bool:
        """Whether there are too few steps to distinguish any fault from noise."""
        return self.window.steps.size < MIN_POINTS

    @property
    def on_cpus(self) -> bool:
        """Whether CPUs compute: neither accelerators, nor the virtual ones of a rehearsal."""
        return not (self.machine.is_rehearsal or self.machine.accelerators or self.window.on_device)

    @property
    def slow_share(self) -> float:
        """Share of a step that a slow rank has to cost to be a finding."""
        return SLOW_ON_CPUS if self.on_cpus else MIN_SHARE

    def all_ranks(self, do: str) -> str:
        """Subject and verb of a sentence on what all ranks ``do``: "All ranks wait", or of one "The rank waits"."""
        return f"All ranks {do}" if self.window.ranks > 1 else f"The rank {do}s"

    @property
    def crowded_share(self) -> float | None:
        """Share of the time in which the median rank was runnable without a CPU; None: not known."""
        return crowded_share(self.window, self.machine)

    @property
    def span(self) -> str:
        """The steps that numbers come from, as evidence names them."""
        steps = self.window.steps
        return show_steps(steps.size, int(steps[0]), int(steps[-1])) if steps.size else "no steps"

    def mean_s(self, phase: str) -> Floats:
        """Seconds per step of ``phase`` by rank, shape (ranks,)."""
        seconds: Floats = self.window.per_step(phase).mean(axis=0)
        return seconds

    def hosts_of(self, ranks: Sequence[int]) -> list[str]:
        """The hosts of ``ranks``, each once."""
        return list(dict.fromkeys(self.machine.hosts[rank] for rank in ranks if self.machine.hosts[rank]))

    def on(self, rank: int) -> str:
        """A rank and its host, to begin a sentence."""
        host = self.machine.hosts[rank]
        return f"Rank {rank} on {host}" if host else f"Rank {rank}"


def gather(
    window: Window,
    machine: Machine,
    observed: Observed,
    *,
    network: Network | None = None,
    blame: Blame | None = None,
    pace: LoaderPace | None = None,
) -> Facts:
    """The facts of ``window``, which ran on ``machine``; ``network``: None derives it from ``machine``."""
    loading = loading_of(window, machine, observed.first, observed.start, pace)
    if loading is not None and (loading.certain or loading.timed):
        window = limited(window, loading.limits)
    late = late_ranks(window, machine, blame, observed.stalls, observed.first)
    return Facts(
        **{one.name: getattr(observed, one.name) for one in fields(observed)},
        window=window,
        machine=machine,
        replayed=replay(window),
        late=replace(late, loaders=late_by_pace(window, loading, late.loaders)),
        network=network_of(machine, window) if network is None else network,
        blame=blame,
        loading=loading,
    )


def first_batches(aligned: AlignedRun, window: Window) -> Bools:
    """Which steps of ``window`` have the first batch of an epoch in them, by their tags, shape (steps,)."""
    tags = of_steps(aligned.steps.select("step", "tag_first_batch"), window.steps).group_by("step")
    first: Bools = tags.agg(pl.col("tag_first_batch").any()).sort("step")["tag_first_batch"].to_numpy()
    return first


def other_run(run: RunData, window: Window) -> OtherRun | None:
    """``run`` as another run of the same training; None where its samples are not known."""
    samples = float(window.samples.sum())
    if not samples > 0 or not window.measured_s > 0:
        return None
    return OtherRun(
        run=run.record.id,
        ranks=window.ranks,
        samples_per_s=samples / window.measured_s / max(1, window.ranks),
        useful_s=useful_per_sample(window),
        useful_error=useful_error(window),
    )


def useful_per_sample(window: Window) -> dict[str, float]:
    """Phase → seconds of computation per sample, of the lower median rank; empty where samples are not known."""
    samples = window.samples.sum(axis=0)
    if not (samples > 0).all():
        return {}
    phases = {name: window.per_step(name).sum(axis=0) / samples for name in COMPUTE if name in window.work}
    return {name: float(lower_median(seconds)) for name, seconds in phases.items()}


def useful_error(window: Window) -> float:
    """Half of the 95 % interval of the computation of the lower median rank, divided by it; 0 where it is not known."""
    computed_s = sum((window.per_step(name) for name in COMPUTE), start=np.zeros(window.samples.shape))
    means_s = computed_s.mean(axis=0)
    rank = int(np.abs(means_s - lower_median(means_s)).argmin())
    spread = ratio_interval(computed_s[:, rank], np.ones(window.steps.size))
    if spread.low is None or spread.high is None or not spread.value > 0:
        return 0.0
    return (spread.high - spread.low) / 2 / spread.value
