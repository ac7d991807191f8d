"""A run that has been recorded: its data frames, its metrics, its explanation, its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import polars as pl

from allpull.analyse import frames
from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.api.places import Place, run_directories, run_directory
from allpull.api.reporting import with_efficiencies, with_explanation, write_report
from allpull.api.results import Explanation, Metrics
from allpull.errors import RunDirError
from allpull.report.printable import short
from allpull.report.wording import NAME_CHARACTERS
from allpull.rundir.read.places import is_folder_of_runs
from allpull.rundir.read.run import RunData, read_run


class Run:
    """One recorded run, opened by `open_run`, `open_runs`, or `wait` of a job.

    Its data frames are polars'; `.to_pandas()` makes them pandas'. Times are float seconds, sizes are bytes, and the
    unit is in the name of the column; null means not measured, never 0. Each is worked out at first use, and kept.
    """

    def __init__(self, data: RunData) -> None:
        self.aligned = AlignedRun(data)
        """All records, with the moments of all ranks on one clock; its form may change between versions."""

    @property
    def data(self) -> RunData:
        """All records as stored on disk, in integer nanoseconds; its form may change between versions."""
        return self.aligned.data

    @property
    def id(self) -> str:
        """The name of the run directory."""
        return self.data.record.id

    @property
    def name(self) -> str:
        """The name that the user gave the run."""
        return self.data.record.name

    @property
    def directory(self) -> Path:
        """The run directory, absolute."""
        return self.data.directory

    @property
    def status(self) -> str:
        """``completed``, ``failed``, ``cancelled``; ``created`` and ``running`` before the end."""
        return self.data.record.status

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.data.record.ranks

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing from the records or could not be used, a sentence each: those of `metrics`."""
        return tuple(self._metrics.gaps)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row per rank and step."""
        return frames.steps(self.aligned)

    @cached_property
    def phases(self) -> pl.DataFrame:
        """One row per rank and steady step: the seconds of each phase. They sum to the wall time of the step."""
        return frames.phases(self.aligned)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """One row per recorded call of a collective; DDP's own all-reduces in backward are not among them."""
        return frames.collectives(self.aligned)

    @cached_property
    def counters(self) -> pl.DataFrame:
        """One row per rank and sample of its processes: CPU, memory, input and output."""
        return frames.counters(self.aligned)

    def metrics(self) -> Metrics:
        """Throughput, step time, phases and the rest of ``allpull show``."""
        return self._metrics

    @cached_property
    def _metrics(self) -> Metrics:
        return Metrics.of(with_efficiencies([metrics(self.aligned)], [self.aligned], None)[0])

    def explain(
        self, reference: Run | Place | Iterable[Run | Place] | None = None, *, skip_damaged: bool = False
    ) -> Explanation:
        """The efficiency tree, the findings and their remedies, as ``allpull explain`` gives them.

        Args:
            reference: runs of the same training on other numbers of ranks; efficiency is measured against the one
                with the fewest.
            skip_damaged: leave out lines of their records that cannot be read.

        Raises:
            RunDirError: a reference cannot be read.
            BadInput: a reference is of another program.
        """
        from allpull.api.explanation import explain_run  # noqa: PLC0415  only what explains loads the rules

        references = [] if reference is None else as_runs(reference, skip_damaged=skip_damaged)
        return explain_run(self.aligned, [one.aligned for one in references])

    def report(self, path: Place) -> Path:
        """Write one self-contained HTML report of this run to ``path``; returns its path.

        Raises:
            BadInput: ``path`` cannot be written.
        """
        return write_report(with_explanation([self.aligned]), Path(path))[0]

    def __repr__(self) -> str:
        shown = self.metrics()
        return f"Run {short(self.id, NAME_CHARACTERS)}: {self.status}\n{shown!r}"

    def _repr_html_(self) -> str:
        return self.metrics()._repr_html_()


def open_run(path: Place, *, skip_damaged: bool = False) -> Run:
    """Open the run at ``path``: a run directory, or a folder that holds just one.

    Args:
        path: the run directory.
        skip_damaged: leave out lines that cannot be read, and count them in ``Run.gaps``.

    Raises:
        RunDirError: there is no run, or it cannot be read.
        BadInput: there are several runs.
    """
    return Run(read_run(run_directory(path), skip_damaged=skip_damaged))


def open_runs(places: Place | Iterable[Place], *, skip_damaged: bool = False) -> list[Run]:
    """Open all runs at ``places``, by their number of ranks, then by the time at which they were created.

    Args:
        places: a folder of runs, or several run directories and folders; each run is opened once.
        skip_damaged: leave out lines that cannot be read, and count them in ``Run.gaps``.

    Raises:
        RunDirError: there is no run at a place, or one of them cannot be read.
        BadInput: no place was given.
    """
    return _in_order(each_run([places] if isinstance(places, str | Path) else places, skip_damaged=skip_damaged))


def _in_order(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.ranks, run.data.record.created_utc, run.id))


def each_run(places: Iterable[Place], *, skip_damaged: bool = False) -> list[Run]:
    """All runs at ``places`` as `open_runs`, in the order in which they are given.

    Raises:
        RunDirError: there is no run at a place, or one of them cannot be read.
        BadInput: no place was given.
    """
    return [Run(read_run(path, skip_damaged=skip_damaged)) for path in run_directories(places)]


def readable_runs(places: Iterable[Place], *, skip_damaged: bool = False) -> tuple[list[Run], list[str]]:
    """All runs at ``places`` as `open_runs`, and a line on each run of a folder that cannot be read.

    Raises:
        RunDirError: there is no run at a place, none can be read, or one that is itself a place cannot be.
        BadInput: no place was given.
    """
    chosen = [Path(place) for place in places]
    runs, faults = [], []
    for path in run_directories(chosen):
        try:
            runs.append(Run(read_run(path, skip_damaged=skip_damaged)))
        except RunDirError as error:
            if not any(is_folder_of_runs(place, path) for place in chosen):
                raise
            faults.append(error)
    if faults and not runs:
        raise faults[0]
    return _in_order(runs), [fault.message for fault in faults]


def as_runs(runs: Run | Place | Iterable[Run | Place], *, skip_damaged: bool = False) -> list[Run]:
    """Every given run, and the runs at every given place, which is opened as by `each_run`."""
    return list(opened(unopened(runs), skip_damaged=skip_damaged))


def unopened(runs: Run | Place | Iterable[Run | Place]) -> list[Run | Path]:
    """Every given run, and the directory of every run at a given place.

    Raises:
        RunDirError: there is no run at a place.
    """
    if isinstance(runs, Run):
        return [runs]
    if isinstance(runs, str | Path):
        return [*run_directories([runs])]
    return [one for each in runs for one in unopened(each)]


def opened(runs: Iterable[Run | Path], *, skip_damaged: bool = False) -> Iterator[Run]:
    """``runs`` one after the other, each read when it is asked for, and kept by whom it is given to alone.

    Raises:
        RunDirError: one cannot be read.
    """
    for one in runs:
        yield one if isinstance(one, Run) else Run(read_run(one, skip_damaged=skip_damaged))
