"""Compare all-reduce probes on two placements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allpull.api.runs import Run, each_run
from allpull.compare.placements import Probed, compare_placements
from allpull.errors import BadInput
from allpull.rundir.read.probes import read_probe
from allpull.rundir.run_record import read_record
from allpull.schema.compared import PlacementResult
from allpull.schema.probes import AllreduceAnswer

NAME = "allreduce"


def placements(before: Sequence[Path], after: Sequence[Path], *, skip_damaged: bool) -> PlacementResult | None:
    """The all-reduces of the probes in these run directories, on two placements; None where these are trainings.

    Raises:
        BadInput: only some are probes, or they cannot be compared.
        RunDirError: one is no all-reduce probe, or cannot be read.
    """
    records = [read_record(directory) for directory in (*before, *after)]
    probes = [record.kind == "probe" for record in records]
    if not any(probes):
        return None
    if not all(probes):
        training = records[probes.index(False)].id
        raise BadInput(f"{training} is no probe, and others are", hint="compare probes with probes, runs with runs")
    sides = ([_probed(run) for run in each_run(side, skip_damaged=skip_damaged)] for side in (before, after))
    return compare_placements(*sides)


def _probed(run: Run) -> Probed:
    answer = read_probe(run.data.directory, NAME, AllreduceAnswer)
    return Probed(record=run.data.record, hosts=run.data.hosts, answer=answer)
