"""Made-up studies: of all parts, of nothing, of hostile names."""

from __future__ import annotations

import itertools
from typing import Any

from report_samples import HOSTILE, detail, metrics

from allpull.published.series import published_series
from allpull.report.study.content import StudyReport
from allpull.schema.base import tag
from allpull.schema.results import RunDetail
from allpull.schema.studied import StudyResult
from allpull.study.audit.own import audit_study

EPOCH_SAMPLES = 51_200
RATES = {"fp32": 500.0, "bf16": 880.0}
KEPT = {1: 1.0, 2: 0.95, 4: 0.88, 8: 0.71}  # efficiency by ranks


def interval(value: float, share: float = 0.01) -> dict[str, float]:
    """``value`` with an interval of ± ``share``."""
    return {"value": value, "low": value * (1 - share), "high": value * (1 + share)}


def epoch_s(ranks: int, rate: float, epochs: int = 4) -> dict[str, Any]:
    """An epoch of ``EPOCH_SAMPLES`` at ``rate``, with 1 s of evaluation and a first epoch that is slower."""
    training = EPOCH_SAMPLES / rate
    parts = {"training": training, "evaluation": 1.0, "checkpoint": 0.3, "start": 0.5, "other": 0.1}
    total = sum(parts.values())
    each = [
        {**parts, "total": total + (5 if epoch == 0 else 0), "start": 0.5 + (5 if epoch == 0 else 0)}
        | {"epoch": epoch, "steps": EPOCH_SAMPLES // (64 * ranks), "samples": EPOCH_SAMPLES}
        for epoch in range(epochs)
    ]
    shown = {"epochs": epochs - 1, "interval": interval(total), "shortest": total, "longest": total * 1.01}
    return {**parts, "total": total, **shown, "first": each[0], "each": each}


def point(parameters: dict[str, Any], rate: float | None, **changes: Any) -> dict[str, Any]:
    """One point with three repeats; without a ``rate`` all of them failed."""
    ranks, hosts = parameters["ranks"], parameters.get("hosts", 1)
    numbers = "-".join(str(value) for value in parameters.values())
    own = {name: value for name, value in parameters.items() if name not in {"ranks", "hosts", "launcher"}}
    nothing = {"state": "timeout", "run": None, "seconds": 60.0, "reason": "no end after 1 min", "metrics": None}
    runs = [{"repeat": repeat, **nothing} for repeat in range(3)]
    if rate is not None:
        run = metrics(ranks, throughput=interval(rate), hosts=hosts, precision=own.get("precision", "fp32"))
        run |= {
            "epoch_s": epoch_s(ranks, rate),
            "io": {"read_bytes_per_s": 2e7, "reads_per_s": 180.0, "storage_read_bytes_per_s": 0.0},
        }
        one = {"state": "completed", "run": f"runs/{numbers}", "seconds": 70.0, "reason": None, "metrics": run}
        runs = [{"repeat": repeat, **one} for repeat in range(3)]
    bare = dict.fromkeys(("throughput", "speedup", "efficiency", "epoch_s", "time_to_solution_s", "epoch_speedup"))
    made = {
        "id": f"{abs(hash(numbers)):x}"[:12],
        "parameters": parameters,
        "series": own,
        "ranks": ranks,
        "hosts": hosts,
    }
    known = {} if rate is None else {"throughput": interval(rate), "epoch_s": interval(EPOCH_SAMPLES / rate + 1.9)}
    known |= {} if rate is None else {"time_to_solution_s": interval(4 * (EPOCH_SAMPLES / rate + 1.9) + 5)}
    return {**made, "runs": runs, **bare, **known, **changes}


def scaled(parameters: dict[str, Any], sizes: dict[int, float | None], base_rate: float) -> list[dict[str, Any]]:
    """Points of one series with these efficiencies by ranks; None: it failed."""
    made = []
    smallest = min(sizes)
    for ranks, kept in sizes.items():
        rate = None if kept is None else base_rate * ranks * kept
        one = point({"ranks": ranks, **parameters}, rate)
        if kept is not None:
            ratio = ranks / smallest * kept
            one |= {"speedup": interval(ratio, 0.015), "efficiency": interval(kept, 0.015)}
            one |= {
                "epoch_speedup": interval(
                    (EPOCH_SAMPLES / base_rate + 1.9) / (EPOCH_SAMPLES / (base_rate * ranks * kept) + 1.9)
                )
            }
        made.append(one)
    return made


def study(points: list[dict[str, Any]], **changes: Any) -> StudyResult:
    """A study of ``points``."""
    plain = {
        "schema": tag("study"),
        "name": "my-scaling",
        "title": "Weak scaling of a ResNet-50",
        "directory": "studies/my-scaling",
        "scaling": "weak",
        "points": points,
        "published": [],
        "changed": [],
        "notes": [],
        **changes,
    }
    return StudyResult.model_validate(plain)


def report(made: StudyResult) -> StudyReport:
    """Everything that the page of ``made`` shows."""
    details = {
        one.id: RunDetail.model_validate(detail(run.metrics.model_dump(by_alias=True)))
        for one in made.points
        for run in one.runs[:1]
        if run.metrics is not None
    }
    audited = audit_study(made)
    return StudyReport(study=made, details=details, findings=audited.findings, unchecked=audited.notes)


def full() -> StudyReport:
    """Two precisions at four sizes, a curve of workers, a failed point, published series, changes."""
    points = [
        one
        for precision, rate in RATES.items()
        for one in scaled({"precision": precision, "workers": 4}, {**KEPT, 16: None}, rate)
    ]
    rates = {1: 332.0, 2: 525.0, 8: 1930.0, 16: 1990.0}
    points += [point({"ranks": 4, "precision": "fp32", "workers": workers}, rate) for workers, rate in rates.items()]
    return report(
        study(
            points,
            published=[one.model_dump() for one in published_series(["m100_multi", "m100_workers", "hal_feb"])],
            changed=[
                {"what": "data.size", "full": "224", "here": "32"},
                {"what": "steps", "full": "5000", "here": "40"},
            ],
            notes=["16 ranks need more processors than this machine has"],
        )
    )


def workers() -> StudyReport:
    """One size, one curve of workers, and a named axis."""
    rates = {1: 332.0, 2: 525.0, 4: 898.0, 8: 1273.0, 16: 1332.0}
    points = [point({"ranks": 4, "workers": count, "backend": "gloo"}, rate) for count, rate in rates.items()]
    points += [point({"ranks": 4, "workers": count, "backend": "nccl"}, 1.1 * rate) for count, rate in rates.items()]
    return report(
        study(points, scaling=None, published=[one.model_dump() for one in published_series(["m100_workers"])])
    )


def strong() -> StudyReport:
    """Strong scaling alone, over 64 times as many ranks, without intervals."""
    points = scaled({"global_batch": 2048}, {2**power: 0.93**power for power in range(7)}, 500.0)
    for one in points:
        batch = {"global_batch": 2048, "samples_per_rank_step": 2048 / one["ranks"]}
        one["runs"] = [{**run, "metrics": {**run["metrics"], **batch}} for run in one["runs"][:1]]
        for name in ("throughput", "speedup", "efficiency"):
            one[name] = {**one[name], "low": None, "high": None}
    return report(study(points, scaling="strong"))


def empty() -> StudyReport:
    """Every point failed."""
    return report(study(scaled({}, dict.fromkeys((1, 2)), 1.0)))


def hostile(text: str = HOSTILE) -> StudyReport:
    """Every free text is ``text``."""
    points = [
        one
        for value, other in itertools.product((f"0{text}", f"1{text}"), (1, 2))
        for one in scaled({f"p.{text}": value, f"q{text}": other}, {1: 1.0, 2: 0.9, 4: None}, 100.0 * other)
    ]
    for one in points:
        one["runs"] = [{**run, "reason": text, "run": text} for run in one["runs"]]
    series = published_series(["m100_multi"])[0].model_dump() | {"series": text, "model": text, "framework": text}
    series["points"] = [{**one, "gpu": text, "caveat": text} for one in series["points"]]
    return report(
        study(
            points,
            name=text,
            title=text,
            directory=text,
            published=[series | {"source": text}],
            changed=[{"what": text, "full": text, "here": text}],
            notes=[text],
        )
    )


MAKERS = {"full": full, "workers": workers, "strong": strong, "empty": empty, "hostile": hostile}
