"""How far do the numbers carry? What they contradict in themselves, limits, machine and definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from allpull.report.html.block import Block, Part, Points, Table, Terms, Text
from allpull.report.printable import short
from allpull.report.sections.method import DEFINITIONS, REASONS
from allpull.report.study.content import StudyReport
from allpull.report.wording import NAME_CHARACTERS, joined
from allpull.units import counted, show_bytes

MOST_FINDINGS = 40
MOST_MACHINES = 8
CHECKS = {
    "samples": "images/s × time = images",
    "share-not-training": "time that is not training",
    "speed-up": "speed-up against its base",
    "efficiency": "efficiency both ways",
    "linear": "near linear",
    "accuracy": "accuracy at all sizes",
    "product": "product of factors",
    "gain": "gain over another series",
    "extrapolated": "extrapolated time",
    "first-epoch": "first epoch",
    "warm-up": "warm-up in the mean",
    "page-cache": "page cache",
    "efficiency-by-time": "efficiency both ways",
}
OF_A_STUDY = {
    "Interval of a point": (
        "95 %, by Student's t over the repeats of the point, which were run in shuffled order. Of a single run it is "
        "that of the steps within the run, and a slow day is not in it."
    ),
    "Ratios": (
        "Speed-up, efficiency and ratios of settings combine the intervals of both sides on the log scale (Donner and "
        "Zou, 2010). Both sides are taken as independent."
    ),
    "Published points": (
        "As published, in the same units. Speed-ups beside them are computed from their rates or times, relative to "
        "the smallest size of their series; hardware, data and software differ."
    ),
}


def audit(report: StudyReport) -> Block:
    """What the study's own numbers contradict, by the checks of ``allpull study audit``."""
    slips = sum(one.kind == "slip" for one in report.findings)
    rows = [
        (CHECKS.get(one.check, one.check), "slip" if one.kind == "slip" else "note", one.text)
        for one in sorted(report.findings, key=lambda one: one.kind != "slip")[:MOST_FINDINGS]
    ]
    parts: list[Part] = []
    if rows:
        columns = ("Check", "Kind", "What follows from the numbers")
        parts.append(Table(caption="Findings", columns=columns, rows=rows, text_columns=3))
    if report.unchecked:
        parts.append(Text(text=f"Not checked: {'; '.join(report.unchecked)}.", quiet=True))
    if not report.findings:
        lead = "The numbers of this study do not contradict each other."
    else:
        others = counted(len(report.findings) - slips, "observation")
        lead = f"{counted(slips, 'slip')} and {others} in this study's own numbers."
    return Block(title="This study audited", lead=lead, parts=parts)


def method(report: StudyReport) -> Block:
    """Machine, repeats, steps left out, limits and definitions."""
    parts: list[Part] = [Points(items=list(_facts(report)))]
    definitions = {name: DEFINITIONS[name] for name in ("Steady window", "Throughput", "Speed-up and efficiency")}
    parts.append(Terms(pairs=list({**OF_A_STUDY, **definitions}.items())))
    return Block(title="How it was measured", lead="The machine, the repeats, and what each number means.", parts=parts)


def machines(report: StudyReport) -> list[str]:
    """The kinds of hosts that ran the study, each with how many there are and with its CPUs, GPUs and memory."""
    hosts = {host.host: host for detail in report.details.values() for host in detail.hosts}
    kinds = Counter(
        ", ".join(
            [
                f"{short(host.cpu.model or 'unknown CPU', NAME_CHARACTERS)}, {counted(host.cpu.logical or 0, 'CPU')}",
                *(f"{count} × {short(name, NAME_CHARACTERS)}" for name, count in Counter(host.gpus).items()),
                *([show_bytes(host.memory_bytes)] if host.memory_bytes else []),
            ]
        )
        for host in hosts.values()
    )
    return [f"{counted(count, 'host')} with {kind}" for kind, count in kinds.most_common(MOST_MACHINES)]


def versions(report: StudyReport) -> str:
    """The versions of torch, allpull and Python that the runs had."""
    seen: dict[str, set[str]] = {}
    for detail in report.details.values():
        for name in ("torch", "allpull", "python"):
            if detail.versions.get(name):
                seen.setdefault(name, set()).add(str(detail.versions[name]))
    return joined([f"{name} {' and '.join(sorted(values))}" for name, values in seen.items()])


def left_out(report: StudyReport) -> dict[str, int]:
    """Reason → steps that rates leave out, over all completed runs."""
    counts: Counter[str] = Counter()
    for run in (run for point in report.study.points for run in point.runs):
        counts.update(run.metrics.steady.left_out if run.metrics else {})
    return dict(counts)


def steady_steps(report: StudyReport) -> list[int]:
    """Steady steps of each completed run."""
    return [run.metrics.steady.used for point in report.study.points for run in point.runs if run.metrics is not None]


def _facts(report: StudyReport) -> Iterator[str]:
    found = machines(report)
    if found:
        yield f"Machine: {joined(found)}."
    if versions(report):
        yield f"Software: {versions(report)}."
    steps = steady_steps(report)
    if steps:
        span = f"{min(steps):,} to {max(steps):,}" if min(steps) < max(steps) else f"{steps[0]:,}"
        yield f"{counted(len(steps), 'run')} completed, with {span} steady steps each."
    reasons = [f"{count:,} ({REASONS.get(name, short(name, 40))})" for name, count in left_out(report).items() if count]
    if reasons:
        yield f"Steps left out of rates: {joined(reasons)}."
    yield "Points are run in an order shuffled from a seed, so that drift of the machine does not pose as an effect."
    if any(point.ranks > 1 and point.hosts == 1 for point in report.measured):
        yield "Ranks on one host share its CPUs, memory and caches; on one host per rank the efficiency may differ."
