"""Forecast larger sizes of a training from its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from allpull.analyse.probes.loader import loaded
from allpull.analyse.probes.storage import stored
from allpull.api.places import Place
from allpull.api.results import MOST_LINES, Shown
from allpull.api.runs import Run, as_runs
from allpull.errors import BadInput
from allpull.predict.calibration.calibrated import Probe, Stated
from allpull.predict.runs import Request, forecast_runs
from allpull.predict.targets import TargetRequest
from allpull.report.wording import percent, spread
from allpull.rundir.read.probes import has_probe, read_probe
from allpull.schema.forecast import ForecastResult
from allpull.schema.probed import LoaderResult, StorageResult
from allpull.schema.probes import AllreduceAnswer, LoaderAnswer, StorageAnswer
from allpull.study.directory import is_study
from allpull.study.forecast import forecast_study
from allpull.units import counted, parse_rate_bytes_per_s, parse_time_s


class Forecast(Shown, ForecastResult):
    """Larger sizes of a training: the fields of ``allpull predict RUN… --json``."""

    def _lines(self) -> Iterator[str]:
        if self.refused is not None:
            yield f"no forecast: {self.refused}"
        for one in self.predictions[:MOST_LINES]:
            yield (
                f"{counted(one.ranks, 'rank')}: {spread(one.throughput)} samples/s, "
                f"efficiency {percent(one.efficiency.value)}"
            )
        if len(self.predictions) > MOST_LINES:
            yield f"and {counted(len(self.predictions) - MOST_LINES, 'more size')}"


def predict(
    runs: Run | Place | Iterable[Run | Place],
    ranks: int | Sequence[int],
    *,
    hosts: Sequence[int] | None = None,
    ranks_per_host: int | None = None,
    batch: float | None = None,
    global_batch: float | None = None,
    calibrate: int | None = None,
    probes: Run | Place | Iterable[Run | Place] = (),
    link: str | None = None,
    latency: str | None = None,
    target: TargetRequest | None = None,
    what_if: str | Sequence[str] = (),
    skip_damaged: bool = False,
) -> Forecast:
    """Forecast a training on other numbers of ranks, from short runs of it on one or two.

    Args:
        runs: runs, run directories, or folders of them, of one program. All-reduce probes among them count as
            ``probes``. Or the directory of a study: of its series with most sizes measured.
        ranks: the sizes to forecast; of a study, none: those that were not measured.
        hosts: hosts of each size; None: as many ranks per host as in the largest run.
        ranks_per_host: instead of ``hosts``.
        batch: samples per rank and step; None: as in the runs.
        global_batch: samples per step of all ranks, instead of ``batch``.
        calibrate: how many of the smallest sizes to calibrate with; the others are held back. None: all.
        probes: runs of ``allpull probe allreduce``, ``loader`` and ``storage``.
        link: line rate between hosts where it was not measured, such as ``25 Gbit/s``.
        latency: of a hop between hosts, such as ``20 us``.
        target: what the training ends at, for its time, energy and cost: an ``allpull.predict.targets.TargetRequest``.
        what_if: changes to forecast as well, ``KEY=VALUE`` each, such as ``link=x2``.
        skip_damaged: leave out lines of records that cannot be read.

    Raises:
        RunDirError: one of the runs cannot be read.
        BadInput: no run was given, or the request contradicts itself.
    """
    study = Path(runs) if isinstance(runs, str | Path) and is_study(Path(runs)) else None
    opened = [] if study is not None else _opened(runs, skip_damaged=skip_damaged)
    probed = [*(run for run in opened if _is_probe(run)), *as_runs(probes, skip_damaged=skip_damaged)]
    request = Request(
        what_if=(what_if,) if isinstance(what_if, str) else tuple(what_if),
        ranks=(ranks,) if isinstance(ranks, int) else tuple(ranks),
        hosts=None if hosts is None else tuple(hosts),
        ranks_per_host=ranks_per_host,
        batch=batch,
        global_batch=global_batch,
        calibrate=calibrate,
        stated=Stated(
            link_bytes_per_s=None if link is None else parse_rate_bytes_per_s(link),
            latency_s=None if latency is None else parse_time_s(latency),
        ),
        target=target,
    )
    request = replace(request, loader=_loader(probed), storage=_storage(probed))
    trained = [run.aligned for run in opened if not _is_probe(run)]
    known = _probes(probed)
    result = forecast_runs(trained, known, request) if study is None else forecast_study(study, request, known)
    return Forecast.model_construct(**{name: getattr(result, name) for name in ForecastResult.model_fields})


def _opened(runs: Run | Place | Iterable[Run | Place], *, skip_damaged: bool) -> list[Run]:
    """``runs``, one at least.

    Raises:
        BadInput: there is none.
    """
    opened = as_runs(runs, skip_damaged=skip_damaged)
    if not opened:
        raise BadInput("no run was given", hint="give a run directory, or a folder of them")
    return opened


def _is_probe(run: Run) -> bool:
    return run.data.record.kind == "probe"


def _probes(runs: Iterable[Run]) -> list[Probe]:
    """The answers of all-reduce probes.

    Raises:
        BadInput: one is no probe.
        RunDirError: it is no all-reduce probe, or its answer cannot be read.
    """
    probes = []
    for run in runs:
        if not _is_probe(run):
            raise BadInput(f"{run.id} is no probe", hint="--probe takes runs of allpull probe allreduce")
        if any(has_probe(Path(run.data.directory), name) for name in ("loader", "storage")):
            continue
        answer = read_probe(Path(run.data.directory), "allreduce", AllreduceAnswer)
        probes.append(Probe(run=run.id, answer=answer, hosts=len(run.data.record.hosts)))
    return probes


def _loader(probes: Iterable[Run]) -> LoaderResult | None:
    """The last loader probe of ``probes``; None: there is none."""
    found = None
    for run in probes:
        if has_probe(Path(run.data.directory), "loader"):
            found = loaded(read_probe(Path(run.data.directory), "loader", LoaderAnswer), run.id)
    return found


def _storage(probes: Iterable[Run]) -> StorageResult | None:
    """The last storage probe of ``probes``; None: there is none."""
    found = None
    for run in probes:
        if has_probe(Path(run.data.directory), "storage"):
            found = stored(read_probe(Path(run.data.directory), "storage", StorageAnswer), run.id)
    return found
