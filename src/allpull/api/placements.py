"""Compare all-reduce probes on two placements."""

from __future__ import annotations

from collections.abc import Sequence

from allpull.api.places import Place
from allpull.api.runs import Run, each_run
from allpull.compare.placements import Probed, compare_placements
from allpull.errors import BadInput
from allpull.rundir.read.probes import read_probe
from allpull.schema.compared import PlacementResult
from allpull.schema.probes import AllreduceAnswer

NAME = "allreduce"


def placements(before: Sequence[Run], after: Sequence[Run]) -> PlacementResult | None:
    """The all-reduces of probes on two placements; None where these are trainings.

    Raises:
        BadInput: only some are probes, or they cannot be compared.
        RunDirError: one is no all-reduce probe, or its result cannot be read.
    """
    every = [*before, *after]
    probes = [run.data.record.kind == "probe" for run in every]
    if not any(probes):
        return None
    if not all(probes):
        training = every[probes.index(False)].id
        raise BadInput(f"{training} is no probe, and others are", hint="compare probes with probes, runs with runs")
    return compare_placements([_probed(run) for run in before], [_probed(run) for run in after])


def open_sides(before: Sequence[Place], after: Sequence[Place], *, skip_damaged: bool) -> tuple[list[Run], list[Run]]:
    """The runs of both sides.

    Raises:
        RunDirError: one cannot be read.
        BadInput: a side is empty.
    """
    return each_run(before, skip_damaged=skip_damaged), each_run(after, skip_damaged=skip_damaged)


def _probed(run: Run) -> Probed:
    answer = read_probe(run.data.directory, NAME, AllreduceAnswer)
    return Probed(record=run.data.record, hosts=run.data.hosts, answer=answer)
