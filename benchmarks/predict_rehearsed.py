"""Is `allpull predict` right for sizes, link rates, buckets and faults that it has not seen? Rehearsed clusters say so.

    python benchmarks/predict_rehearsed.py [--keep DIR] [--passes 2] [--minutes 25] [--extrap PYTHON] [--output FILE]

Calibrated on 1 and 2 ranks at 100 Mbit/s and an all-reduce probe of 2 ranks, it forecasts every case of
`rehearsed_cases.py`. The truth of each is rehearsed, ``--passes`` times, in an order shuffled anew in each pass; steps
that other programs on the machine disturbed do not count (`rehearsed_truth.py`). With ``--keep`` nothing is rehearsed
twice: the same command continues, and forecasts anew.

Set before anything was rehearsed: `TARGETS`.

Beside it stand a step without overlap, one with perfect overlap, linear scaling from 2 ranks, and what Extra-P
(Calotoiu et al. 2013, SC '13) picks from five measured sizes, which it needs; ``--extrap`` is the interpreter of an
environment with `extrap`. Needs root.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from allpull.cli.predict import REFUSED
from rehearsed_cases import BACKWARD_MS, ONE, PROBE_RANKS, RATE, TWO, Case, Rehearsal, cases
from rehearsed_truth import MEASURED, Truth, probe, rehearse, run_allpull, run_of
from scaling_baselines import extrap, no_overlap_s, perfect_overlap_s, ring_s
from stored import keep

TARGETS = {"mean_error": 0.03, "largest_error": 0.08, "coverage": 0.85, "half_width": 0.05}
"""Mean and largest error, least share of truths within the 90 % interval, and the mean half of its width."""

CPU_LIMIT = 0.8  # of all cores: links that share busier ones are slower than their rate, which no real cluster does


def collect(folder: Path, passes: int, until_s: float) -> dict[str, list[Truth]]:
    """The truths of every rehearsal, one for each pass; those of a later pass are missing once the time is over.

    Calibrations and the probe are made once, in the first pass, among the others.
    """
    probe(folder / "probe", PROBE_RANKS, RATE)
    truths = dict[str, list[Truth]]()
    for turn in range(passes):
        jobs = rehearsals(cases(), calibrations=turn == 0)
        random.Random(turn).shuffle(jobs)
        for job in jobs:
            place = folder / f"{job.name}-{turn}"
            if time.monotonic() > until_s and not (place / MEASURED).is_file():
                continue
            truth = rehearse(job, place, seed(job, turn))
            truths.setdefault(job.name, []).append(truth)
            print(
                f"{turn} {job.name:14} step {truth.step_s:.4f} s, epoch {truth.epoch_s or 0:7.3f} s, CPU "
                f"{truth.cpu_share:.2f}, load {truth.load:.1f}, {truth.undisturbed} of {truth.steps} steps undisturbed",
                file=sys.stderr,
                flush=True,
            )
    return truths


def seed(job: Rehearsal, turn: int) -> int:
    """That of a job's jitter in one pass: jobs with jitter differ in their sizes."""
    return 100 * turn + job.ranks


def rehearsals(chosen: Sequence[Case], *, calibrations: bool) -> list[Rehearsal]:
    """The jobs of cases, each once: truths that calibrate nothing, and the calibrations where they are wanted."""
    made = {one.name: one for case in chosen for one in case.calibration}
    foreseen = {case.truth.name: case.truth for case in chosen if case.truth.name not in made}
    return list((foreseen | made if calibrations else foreseen).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: truth and forecast in s, or why there is no forecast; ``baselines_s`` by name.

    ``as_recorded_s``: the median of the passes with every step as it is. ``cpu_share``: how busy a rehearsal kept this
    machine's cores; above ``CPU_LIMIT`` they limited it, not its links.
    """

    case: str
    group: str
    quantity: str
    ranks: int
    truth_s: float
    truths_s: tuple[float, ...]
    as_recorded_s: float
    forecast_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    terms_s: Mapping[str, float] | None = None
    refused: str | None = None
    baselines_s: Mapping[str, float] | None = None
    cpu_share: float = 0.0

    @property
    def error(self) -> float | None:
        """Of the forecast, relative."""
        return None if self.forecast_s is None else self.forecast_s / self.truth_s - 1

    @property
    def half_width(self) -> float | None:
        """Half of the interval, relative to the forecast."""
        if self.forecast_s is None or self.low_s is None or self.high_s is None:
            return None
        return (self.high_s - self.low_s) / 2 / self.forecast_s

    @property
    def held(self) -> bool:
        """Whether the interval holds the truth; a refusal holds nothing."""
        return self.low_s is not None and self.high_s is not None and self.low_s <= self.truth_s <= self.high_s

    def plain(self) -> dict[str, Any]:
        """As it is stored."""
        rounded = json.loads(json.dumps(asdict(self)), parse_float=lambda text: round(float(text), 6))
        error, half_width = _rounded((self.error, self.half_width))
        return {**rounded, "error": error, "half_width": half_width, "held": self.held}


def forecast(case: Case, folder: Path, truths: Mapping[str, list[Truth]]) -> Row:
    """Ask `allpull predict` for one case, and hold the answer against the truth."""
    epochs, ranks = case.quantity == "epoch", case.truth.ranks
    measured = [truth.epoch_s or 0.0 if epochs else truth.step_s for truth in truths[case.truth.name]]
    row: dict[str, Any] = {
        "case": case.name,
        "group": case.group,
        "quantity": case.quantity,
        "ranks": ranks,
        "truth_s": pooled(truths[case.truth.name], measured),
        "truths_s": tuple(measured),
        "as_recorded_s": statistics.median(truth.as_recorded_s[epochs] or 0.0 for truth in truths[case.truth.name]),
        "baselines_s": baselines(case, folder, truths),
        "cpu_share": statistics.median(truth.cpu_share for truth in truths[case.truth.name]),
    }
    answer = _asked(tuple(one.name for one in case.calibration), case.asked, folder)
    if isinstance(answer, str) or answer["refused"]:
        return Row(**row, refused=answer if isinstance(answer, str) else answer["refused"])
    size = next((one for one in answer["predictions"] if one["ranks"] == ranks), None)
    if size is None:
        return Row(**row, refused=next(one["reason"] for one in answer["refused_sizes"] if one["ranks"] == ranks))
    changed = [one for one in answer["waterfall"] if one["ranks"] == ranks]
    chosen = changed[-1] if "--what-if" in case.asked else size
    value = (chosen.get("epoch") or {}).get("seconds") if epochs else chosen["step_s"]
    if value is None:
        return Row(**row, refused="no epoch is forecast")
    terms = size["terms"] if chosen is size else None
    return Row(**row, forecast_s=value["value"], low_s=value["low"], high_s=value["high"], terms_s=terms)


def pooled(passes: Sequence[Truth], seconds: Sequence[float]) -> float:
    """The mean of all passes, each with the weight of its undisturbed steps; the plain mean where there are none."""
    weights = [truth.undisturbed for truth in passes]
    return statistics.fmean(seconds, weights if any(weights) else None)


@cache
def _asked(calibration: tuple[str, ...], asked: tuple[str, ...], folder: Path) -> Any:
    """The answer of `allpull predict` for all sizes that these calibrations and options foresee; a text: it failed."""
    same = [
        case for case in cases() if (tuple(one.name for one in case.calibration), case.asked) == (calibration, asked)
    ]
    sizes = ("--ranks", ",".join(map(str, sorted({case.truth.ranks for case in same}))))
    runs = [str(run_of(folder / f"{name}-0")) for name in calibration]
    probed = () if same[0].truth.workers else ("--probe", str(run_of(folder / "probe")))  # the loader's links differ
    try:
        return json.loads(run_allpull("predict", *runs, *probed, *sizes, *asked, "--json", accepted=(0, REFUSED)))
    except RuntimeError as error:
        return str(error)[-300:]


def baselines(case: Case, folder: Path, truths: Mapping[str, list[Truth]]) -> dict[str, float] | None:
    """What the rivals say of a step of the virtual accelerator; the link's rate is that of the probe, scaled."""
    if case.quantity == "epoch" or case.truth.workers:
        return None
    one, two = (truths[calibration.name][0] for calibration in case.calibration)
    fit = json.loads((folder / "probe" / MEASURED).read_text())["fit"]
    link_bytes_per_s = fit["link_bytes_per_s"]["value"] * case.truth.mbit / RATE
    exchange_s = ring_s(sum(two.bucket_bytes), case.truth.ranks, link_bytes_per_s)
    return {
        "no overlap": no_overlap_s(one.step_s, exchange_s),
        "perfect overlap": perfect_overlap_s(one.step_s, BACKWARD_MS / 1e3, exchange_s),
        "linear scaling": two.step_s,
    }


EXTRAP_SIZES = (1, 2, 3, 4, 6)  # measured ones, at the calibrated rate: five, and Extra-P needs as many


def with_extrap(rows: Sequence[Row], truths: Mapping[str, list[Truth]], python: Path | None) -> dict[str, Any] | None:
    """What Extra-P says of the sizes beyond its five, at the rate that these have; None: it is not installed."""
    if python is None or not python.is_file():
        print("Extra-P is absent: pip install extrap in an environment of its own, and --extrap", file=sys.stderr)
        return None
    names = {1: ONE.name, 2: TWO.name, **{ranks: f"n{ranks}-{RATE}M" for ranks in (*EXTRAP_SIZES[2:], 8, 16)}}
    steps_s = {ranks: pooled(truths[name], [one.step_s for one in truths[name]]) for ranks, name in names.items()}
    beyond = [ranks for ranks in steps_s if ranks not in EXTRAP_SIZES]
    model, answers_s = extrap(str(python), {ranks: steps_s[ranks] for ranks in EXTRAP_SIZES}, beyond)
    errors = [answer_s / steps_s[ranks] - 1 for ranks, answer_s in zip(beyond, answers_s, strict=True)]
    ours = [row.error for row in rows if row.case in {f"size and rate: {names[ranks]}" for ranks in beyond}]
    sizes = {"measured_ranks": EXTRAP_SIZES, "model": model, "ranks": beyond}
    return {**sizes, "errors": _rounded(errors), "allpull": _rounded(ours)}


def _rounded(shares: Iterable[float | None]) -> list[float | None]:
    return [None if share is None else round(share, 4) for share in shares]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors, coverage and width of rows; a refusal has no error, and holds nothing."""
    if not rows:
        return {"cases": 0, "refused": 0, **dict.fromkeys(TARGETS)}
    errors = [abs(row.error) for row in rows if row.error is not None]
    widths = [row.half_width for row in rows if row.half_width is not None]
    return {
        "cases": len(rows),
        "refused": len(rows) - len(errors),
        "mean_error": round(statistics.fmean(errors), 4) if errors else None,
        "largest_error": round(max(errors), 4) if errors else None,
        "coverage": round(sum(row.held for row in rows) / len(rows), 4),
        "half_width": round(statistics.fmean(widths), 4) if widths else None,
    }


def rivals(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean and largest error of each baseline, and of the forecast on the same rows."""
    compared = [row for row in rows if row.baselines_s]
    errors: dict[str, list[float]] = {"allpull": [abs(row.error) for row in compared if row.error is not None]}
    for row in compared:
        for name, step_s in (row.baselines_s or {}).items():
            errors.setdefault(name, []).append(abs(step_s / row.truth_s - 1))
    return {
        name: {
            "cases": len(shares),
            "mean_error": round(statistics.fmean(shares), 4),
            "largest_error": round(max(shares), 4),
        }
        for name, shares in errors.items()
        if shares
    }


def met(overall: Mapping[str, Any]) -> dict[str, bool]:
    """Which of ``TARGETS`` a summary reaches; coverage is the one that has to be large."""
    reached = {}
    for name, target in TARGETS.items():
        value = overall[name]
        reached[name] = value is not None and (value >= target if name == "coverage" else value <= target)
    return reached


def spread(truths: Iterable[Sequence[Truth]]) -> dict[str, float]:
    """How far the passes of a rehearsal lie apart, (largest - smallest) / median: its median and maximum."""
    steps_s = [[truth.step_s for truth in repeats] for repeats in truths if len(repeats) > 1]
    shares = [(max(repeats_s) - min(repeats_s)) / statistics.median(repeats_s) for repeats_s in steps_s] or [0.0]
    return {"median": round(statistics.median(shares), 4), "largest": round(max(shares), 4)}


def main() -> None:
    """Collect, forecast, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the run directories, which the next call goes on from")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no rehearsal after so long")
    parser.add_argument(
        "--extrap", type=Path, help="Python of an environment with extrap; without it Extra-P is absent"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        truths = collect(folder, options.passes, time.monotonic() + 60 * options.minutes)
        chosen = [
            case for case in cases() if {case.truth.name, *(one.name for one in case.calibration)} <= truths.keys()
        ]
        rows = [forecast(case, folder, truths) for case in chosen]
        everything = [truth for repeats in truths.values() for truth in repeats]
        of_links = [row for row in rows if row.cpu_share <= CPU_LIMIT]
        overall = summary(of_links)
        keep(
            options.output,
            {
                "targets": TARGETS,
                "summary": overall,
                "met": met(overall),
                "groups": {
                    group: summary([row for row in of_links if row.group == group])
                    for group in dict.fromkeys(row.group for row in of_links)
                },
                "as_recorded": summary([replace(row, truth_s=row.as_recorded_s) for row in rows]),
                "limited_by_cpus": summary([row for row in rows if row.cpu_share > CPU_LIMIT]),
                "rivals": rivals(of_links),
                "extrap": with_extrap(rows, truths, options.extrap),
                "rehearsals": {
                    "runs": len(everything),
                    "largest_load": max(truth.load for truth in everything),
                    "largest_cpu_share": max(truth.cpu_share for truth in everything),
                    "spread_between_passes": spread(truths.values()),
                    "rehearsed_at": sorted({truth.commit for truth in everything}),
                },
                "rows": [row.plain() for row in rows],
            },
        )


if __name__ == "__main__":
    main()
