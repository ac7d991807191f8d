"""Sentences on scaling: how fast the runs were, and where the lost speed-up went.

They state only what was measured; a cause is named where a phase shows it, otherwise the loss is unattributed.
"""

from __future__ import annotations

from collections.abc import Sequence

from allpull.schema.host import Cpu
from allpull.schema.results import Interval, RunDetail, RunMetrics, ShowResult
from allpull.units import counted, percent, show_count, show_spread, show_time

MIN_SHARE = 0.02  # of a step: a smaller loss is not worth a sentence, and is often noise
SHORT_S = 10.0  # of steady steps: less shows one moment of a machine
BUSY = 0.5  # of the CPUs, by the load average before the job, which a job that has just ended raises too
OTHERS = 0.2  # of the CPUs, counted during the job: what the system itself does takes a few percent
MEANING = {
    "input": "waiting for data",
    "copy": "copying to the device",
    "forward": "forward passes that take longer",
    "backward": "backward passes that take longer",
    "wait": "waiting for the slowest rank",
    "transfer": "exchanging gradients that backward could not hide",
    "optimizer": "optimizer steps that take longer",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "host": "the host issuing work",
    "other": "work between the phases",
}


def sentences(show: ShowResult, details: Sequence[RunDetail]) -> list[str]:
    """What ``show`` means, most important first; ``details`` in the order of its runs."""
    lines: list[str] = []
    reference = next((run for run in show.runs if run.run == show.reference), None)
    by_id = {run.run: run for run in show.runs}
    pairs = [(run, by_id.get(run.reference or "", reference)) for run in show.runs]
    larger = [(run, base) for run, base in pairs if base is not None and run.ranks > base.ranks]
    if not larger:
        lines += [line for run in show.runs for line in _single(run)]
    for run, base in sorted(larger, key=lambda pair: -pair[0].ranks):  # the question is usually about the largest
        lines += _scaled(run, base, show)
    lines += _failures(show.runs, details)
    lines += _accuracy(show.runs)
    lines += _replicas(show.runs)
    lines += _machine(show.runs, details)
    lines += _overhead(show.runs)
    return lines


def caveats(show: ShowResult, details: Sequence[RunDetail]) -> list[str]:
    """What to know before believing the first sentence: a busy machine, too few CPUs, a short run; [] if nothing."""
    if not details:
        return []
    run, detail = max(zip(show.runs, details, strict=True), key=lambda pair: pair[0].ranks)
    shortest = min((one for one in show.runs if one.step_s is not None), key=_steady_s, default=None)
    lines = [*_busy(detail), *_taking_turns(run, detail)]
    if shortest is not None and _steady_s(shortest) < SHORT_S:
        name = f"The run of {_ranks(shortest.ranks)}" if len(show.runs) > 1 else "The run"
        steady = f"{shortest.steady.used:,} steady steps in {show_time(_steady_s(shortest))}"
        lines.append(f"{name} is short ({steady}): a longer one may give other numbers.")
    return lines


def _steady_s(run: RunMetrics) -> float:
    return run.steady.used * run.step_s.median if run.step_s is not None else 0.0


def _single(run: RunMetrics) -> list[str]:
    if run.throughput is None:
        why = "" if run.gaps else ": nothing was recorded"  # gaps are listed beside what is said here
        return [f"{run.name} on {_ranks(run.ranks)} has no throughput{why}."]
    line = f"{_ranks(run.ranks).capitalize()} trained {_interval(run.throughput)} samples/s ({run.steady.used:,} steps)"
    largest = max(((value, name) for name, value in run.phases.items() if value), default=None)
    if largest is None or run.step_s is None:
        return [f"{line}."]
    share = largest[0] / sum(value for value in run.phases.values() if value)
    return [f"{line}; {percent(share)} of a step is {largest[1]}."]


def _scaled(run: RunMetrics, reference: RunMetrics, show: ShowResult) -> list[str]:
    if run.throughput is None or reference.throughput is None:
        return [f"{_ranks(run.ranks).capitalize()} cannot be compared: no throughput was measured on one side."]
    if run.speedup is None or run.efficiency is None:
        return [f"{_ranks(run.ranks).capitalize()} ({run.name}) cannot be compared: a sample is different work there."]
    ideal = run.ranks / reference.ranks
    times = show_spread(run.speedup, _spread(run.speedup_interval))
    ranks, interval = _ranks(run.ranks).capitalize(), run.speedup_interval
    kind = f"{show.scaling} scaling, " if show.scaling else ""
    basis = f"{kind}{run.steady.used:,} and {reference.steady.used:,} steps"
    share = f"{percent(run.efficiency)} of the ideal {show_count(ideal)}"
    if interval is not None and interval.includes(1.0):
        fast = f"{run.speedup:.2f} times as fast, and {interval.low:.2f} to {interval.high:.2f} with 95 % confidence"
        line = f"{ranks} show no speed-up over {reference.ranks}: {fast}; {share} ({basis})."
    elif run.speedup < 1:
        line = f"{ranks} are slower than {reference.ranks}: {times} times as fast, {share} ({basis})."
    else:
        line = f"{ranks} train {times} times as fast as {reference.ranks}: {share} ({basis})."
    return [line, *_uncertain(run), *_losses(run, reference)]


def _uncertain(run: RunMetrics) -> list[str]:
    interval = run.speedup_interval
    if interval is not None and interval.low is not None:
        return []
    return ["There are too few steps for an uncertainty; make a longer run."]


def _losses(run: RunMetrics, reference: RunMetrics) -> list[str]:
    """The difference to the ideal, phase by phase, for as many samples as a step of ``run`` has.

    The time per sample of a rank should stay constant, in weak and strong scaling; its growth is lost, and the growth
    of all phases, minus what others save, adds up to the whole.
    """
    if not run.samples_per_rank_step or not reference.samples_per_rank_step:
        return []
    scale = run.samples_per_rank_step / reference.samples_per_rank_step
    actual_s = sum(value or 0.0 for value in run.phases.values())
    lost_s = actual_s - scale * sum(value or 0.0 for value in reference.phases.values())
    if actual_s <= 0 or lost_s < MIN_SHARE * actual_s:
        return []
    names = list(dict.fromkeys((*run.phases, *reference.phases)))
    grown = {name: (run.phases.get(name) or 0.0) - scale * (reference.phases.get(name) or 0.0) for name in names}
    large = sorted(((extra, name) for name, extra in grown.items() if extra >= MIN_SHARE * actual_s), reverse=True)
    saved_s = -sum(extra for extra in grown.values() if extra <= -MIN_SHARE * actual_s)
    step = f"Of each step on {_ranks(run.ranks)} ({show_time(actual_s)} on average)"
    head = f"{step}, {show_time(lost_s)} is lost against the ideal"
    if not large:
        return [f"{head}; no single phase stands out."]
    parts = [f"{show_time(extra)} to {MEANING.get(name, name)}" for extra, name in large]
    less = f", minus {show_time(saved_s)} saved in other phases" if saved_s else ""
    return [f"{head}: {_listed(parts)}{less}."]


def _failures(runs: Sequence[RunMetrics], details: Sequence[RunDetail]) -> list[str]:
    return [
        f"The run of {_ranks(run.ranks)} did not end well: {detail.exit.describe()}."
        for run, detail in zip(runs, details, strict=True)
        if detail.exit is not None and detail.exit.code != 0
    ]


def _accuracy(runs: Sequence[RunMetrics]) -> list[str]:
    known = [(run.ranks, run.accuracy) for run in runs if run.accuracy is not None]
    if not known:
        return []
    shown = _listed([f"{percent(accuracy, 1)} on {_ranks(ranks)}" for ranks, accuracy in known])
    return [f"Test accuracy (top-1): {shown}."]


def _machine(runs: Sequence[RunMetrics], details: Sequence[RunDetail]) -> list[str]:
    """What a run on this machine can and cannot show."""
    crowded = [
        (run, detail)
        for run, detail in zip(runs, details, strict=True)
        if run.hosts == 1 and run.ranks > 1 and detail.hosts and not detail.hosts[0].gpus
    ]
    if not crowded:
        return _busy(max(zip(runs, details, strict=True), key=lambda pair: pair[0].ranks)[1]) if details else []
    run, detail = max(crowded, key=lambda pair: pair[0].ranks)
    threads = detail.threads_per_rank or 1
    where = f"The {_ranks(run.ranks)} shared one machine with {_cpus(detail.hosts[0].cpu)}"
    shows = "the cost of sharing cores, caches and memory, and that training works the same on any number of ranks"
    cannot = "it cannot show what a network or a GPU would do"
    lines = [f"{where}, {threads} thread{'s' * (threads != 1)} each. This shows {shows}; {cannot}."]
    return [*lines, *_busy(detail), *_taking_turns(run, detail)]


def _cpus(cpu: Cpu) -> str:
    """How many CPUs the ranks of a host had, in words."""
    if cpu.usable is not None and cpu.logical is not None and cpu.usable < cpu.logical:
        return f"{cpu.logical:,} CPUs, of which they might use {cpu.usable:,}"
    return counted(known, "CPU") if (known := cpu.usable or cpu.logical) else "an unknown number of CPUs"


def _busy(detail: RunDetail) -> list[str]:
    """That a machine of the ranks had other work: as counted during the run, else by its load when the run began."""
    share = detail.other_cpu_share
    if share is not None:
        kept_busy = f"other programs kept {percent(share)} of its CPUs busy, and slowed these ranks down"
        return [f"The machine was busy: {kept_busy}."] if share > OTHERS else []
    for host in detail.hosts:
        cpus = host.cpu.usable or host.cpu.logical
        if cpus is not None and host.load_1min is not None and host.load_1min > BUSY * cpus:
            load = f"load {host.load_1min:.1f}"
            return [f"The machine was busy when the run began ({load}): other programs may have slowed the ranks down."]
    return []


def _taking_turns(run: RunMetrics, detail: RunDetail) -> list[str]:
    """That the ranks of one machine have more threads than it has CPUs."""
    if run.hosts != 1 or run.ranks < 2 or not detail.hosts or detail.hosts[0].gpus:
        return []
    cpus = detail.hosts[0].cpu.usable or detail.hosts[0].cpu.logical
    needed = run.ranks * (detail.threads_per_rank or 1)
    if cpus is None or needed <= cpus:
        return []
    return [f"{needed} threads on {counted(cpus, 'CPU')} take turns: the efficiency says nothing about more CPUs."]


def _replicas(runs: Sequence[RunMetrics]) -> list[str]:
    """That replicas agree; where they do not, that is a gap of the run."""
    lines = []
    for run in runs:
        copies = run.replicas
        if copies is None or copies.differ or not copies.checked:
            continue
        line = f"Replicas agree: {_ranks(copies.ranks)} had the same parameters at {copies.checked:,} checked steps"
        if copies.buffers_differ:
            line += "; their buffers differ, as batch statistics do that are not broadcast"
        lines.append(f"{line}.")
    return list(dict.fromkeys(lines))


def _overhead(runs: Sequence[RunMetrics]) -> list[str]:
    shares = [run.overhead.share for run in runs if run.overhead.share is not None]
    return [f"Recording took {percent(max(shares), 2)} of the time at most."] if shares else []


def _ranks(count: int) -> str:
    return counted(count, "rank")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _spread(interval: Interval | None) -> float:
    if interval is None or interval.low is None or interval.high is None:
        return 0.0
    return (interval.high - interval.low) / 2


def _interval(interval: Interval) -> str:
    return show_spread(interval.value, _spread(interval))
