"""Numbers for an allocation proposal: a table that `allpull study audit` reads, and a paragraph to paste."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence

from allpull.report.printable import printable, short
from allpull.report.study.answer import base, best_point, described, falls, largest, sped_up
from allpull.report.study.content import StudyReport
from allpull.report.study.lines import Series, plain_name, series
from allpull.report.study.method import left_out, machines, steady_steps, versions
from allpull.report.study.scaling import bounds
from allpull.report.study.times import timed
from allpull.report.wording import joined, spread, virtual_points
from allpull.schema.studied import StudyPoint, Value
from allpull.study.epochs import epoch_of, epochs_of, metrics_of, samples_per_epoch
from allpull.units import counted

COLUMNS = (
    *("series", "source", "model", "framework", "gpu", "nodes", "gpus", "batch_per_gpu", "precision"),
    *("images_per_sec", "speedup", "efficiency", "train_time_s", "notes"),
)
"""Those of the published measurements that come with allpull."""

DIGITS = 7  # coarser rounding could look like a contradiction
TEXT_CHARACTERS = 200


def table(report: StudyReport) -> str:
    """``points.csv``: one row per measured point, GPUs being ranks; what was not measured is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in series(report.study):
        for point in one.points:
            if point.throughput is not None and point.throughput.value > 0:
                writer.writerow(_row(report, one, point))
    return text.getvalue()


def paragraph(report: StudyReport) -> str:
    """``paragraph.md``: the study in a few sentences, each number with unit and interval."""
    best = best_point(report)
    if best is None:
        return "No point of this study has a throughput yet.\n"
    lines = [
        _setting(report),
        *virtual_points(report.study),
        *_scaled(report),
        f"{_best(report, best)}",
        *_limits(report),
    ]
    return printable(" ".join(line for line in lines if line)) + "\n"


def _row(report: StudyReport, one: Series, point: StudyPoint) -> dict[str, str]:
    run = next(iter(metrics_of(point)), None)
    detail = report.details.get(point.id)
    hosts = detail.hosts if detail is not None else []
    hardware = Counter(name for host in hosts for name in host.gpus).most_common(1)
    cpu = next((host.cpu.model for host in hosts if host.cpu.model), "")
    batch = run.global_batch / point.ranks if run is not None and run.global_batch else _parameter(point, "batch")
    return {
        "series": _cell(f"{report.study.name}: {one.name}"),
        "source": _cell(f"allpull study {report.study.name}"),
        "model": _cell(_parameter(point, "model")),
        "framework": _cell(
            f"PyTorch {detail.versions.get('torch') or ''}".strip() if detail is not None else "PyTorch"
        ),
        "gpu": _cell(hardware[0][0] if hardware else cpu),
        "nodes": str(point.hosts),
        "gpus": str(point.ranks),
        "batch_per_gpu": _number(batch if isinstance(batch, int | float) and batch > 0 else None),
        "precision": _cell(run.precision if run is not None and run.precision else _parameter(point, "precision")),
        "images_per_sec": _number(point.throughput.value if point.throughput else None),
        "speedup": _number(point.speedup.value if point.speedup else None),
        "efficiency": _number(point.efficiency.value if point.efficiency else None),
        "train_time_s": _number(point.time_to_solution_s.value if point.time_to_solution_s else None),
        "notes": _notes(point),
    }


def _notes(point: StudyPoint) -> str:
    epoch = epoch_of(point)
    rate = point.throughput
    facts: dict[str, float | str | None] = {
        "repeats": len(metrics_of(point)),
        "images_per_sec_low": rate.low if rate else None,
        "images_per_sec_high": rate.high if rate else None,
        "epoch_time_s": point.epoch_s.value if point.epoch_s else None,
        "epoch_training_s": epoch.training if epoch is not None and epoch.training > 0 else None,
        "epochs": epochs_of(point),
        "samples": samples_per_epoch(point),
    }
    taken = {*facts, "ranks", "hosts"}
    facts |= {plain_name(name): str(value) for name, value in point.parameters.items() if plain_name(name) not in taken}
    return "; ".join(
        f"{_note(name)}={_number(value) if isinstance(value, int | float) else _note(value)}"
        for name, value in facts.items()
        if value is not None
    )


def _note(text: str) -> str:
    """Text without what divides notes."""
    return short(text.replace(";", ",").replace("=", ":"), TEXT_CHARACTERS)


def _cell(text: object) -> str:
    """Text that no spreadsheet takes for a formula."""
    plain = short(str(text), TEXT_CHARACTERS)
    return f"'{plain}" if plain[:1] in {"=", "+", "-", "@"} else plain


def _number(value: float | None) -> str:
    """A positive number to ``DIGITS`` digits without an exponent; empty for none.

    >>> _number(1582.04), _number(0.000012345), _number(64), _number(None)
    ('1582.04', '0.000012345', '64', '')
    """
    if value is None or not 0 < value < 10**17:
        return ""
    text = f"{value:.{DIGITS}g}"
    if "e" in text:
        text = f"{float(text):.12f}".rstrip("0").rstrip(".")
    return text if float(text) > 0 else ""


def _parameter(point: StudyPoint, name: str) -> Value | str:
    """The value of the parameter of this plain name; empty where the point has none."""
    names = {f"{name}.name", name}
    return next((value for key, value in point.parameters.items() if key in names or plain_name(key) == name), "")


def _setting(report: StudyReport) -> str:
    sizes = sorted({point.ranks for point in report.measured})
    of_sizes = f"{joined([f'{size:,}' for size in sizes])} rank{'' if sizes == [1] else 's'}"
    repeats = sorted({len(metrics_of(point)) for point in report.measured})
    of_repeats = (
        f"{repeats[0]} to {counted(repeats[-1], 'repeat')}" if len(repeats) > 1 else counted(repeats[0], "repeat")
    )
    steps = steady_steps(report)
    of_steps = ""
    if steps:
        span = f"{min(steps):,} to {max(steps):,}" if min(steps) < max(steps) else f"{steps[0]:,}"
        warm_up = sum(left_out(report).values())
        of_all = f"{counted(warm_up, 'step')} of warm-up, evaluation and the like"
        skipped = f" (left out, over all runs: {of_all})" if warm_up else ""
        of_steps = f", {span} steady steps per run{skipped}"
    where = f" on {joined(machines(report))}" if machines(report) else ""
    software = f" with {versions(report)}" if versions(report) else ""
    title = report.study.title or report.study.name
    return (
        f"{title}. We measured {counted(len(report.measured), 'configuration')} on {of_sizes}{where}{software}, "
        f"{of_repeats} of each{of_steps}; intervals are 95 %."
    )


def _scaled(report: StudyReport) -> Iterator[str]:
    scaled = [one for one in series(report.study) if one.is_scaled and largest(one) is not None]
    for one in scaled:
        point = largest(one)
        if point is None:
            continue
        kind = f"In {one.scaling} scaling" if one.scaling else "In scaling"
        name = f" of {one.name}" if len(scaled) > 1 else ""
        smallest = base(one)
        yield (
            f"{kind}{name} from {counted(smallest.ranks, 'rank')} to {point.ranks:,}, throughput goes from "
            f"{_rate(smallest)} to {_rate(point)}, a speed-up of {sped_up(point)}, and an efficiency of "
            f"{bounds(point.efficiency)}; {falls(one)}."
        )


def _best(report: StudyReport, best: StudyPoint) -> str:
    what = "shortest epoch" if best.epoch_s is not None else "highest throughput"
    epoch = f"an epoch of {timed(best.epoch_s)} at " if best.epoch_s is not None else ""
    whole = f", and {timed(best.time_to_solution_s)} for the training" if best.time_to_solution_s is not None else ""
    return f"The {what} was measured on {described(report, best)}: {epoch}{_rate(best)}{whole}."


def _rate(point: StudyPoint) -> str:
    return f"{spread(point.throughput)} samples/s"


def _limits(report: StudyReport) -> Iterator[str]:
    without = sum(point.throughput is None for point in report.study.points)
    if without:
        yield f"{counted(without, 'point')} of the study {'has' if without == 1 else 'have'} no measurement."
    if report.changed:
        changes: Sequence[str] = [f"{plain_name(one.what)} {one.here} for {one.full}" for one in report.changed]
        yield f"The study was fitted to this machine: {joined([short(one, TEXT_CHARACTERS) for one in changes[:6]])}."
    slips = [finding.text for finding in report.findings if finding.kind == "slip"]
    if slips:
        yield f"Read with care: {'; '.join(slips[:3])}."
