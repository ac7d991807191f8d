"""The accelerator is idle while the host issues its next work.

What it is
    Many small kernels: Python and the driver take longer to launch them than the device takes to run them.

How it is found
    By the phase `host`: time in which the device had no work and no batch, collective or copy was waited for. Without a
    profiler that is only known where the host is well ahead of its device. Where it is not, half of the step or more
    passes in forward, backward and optimizer while the host still issues them (`paced_ns`); nine tenths, where the
    device had waited for a batch before: it then begins together with its host, and its host may still be the faster.
    Fewer than half of the ranks suffice where the others wait for them and their hosts are as fast: once the hosts of
    the others got ahead, while these evaluated, say, they stay ahead, and their devices find work already issued. It
    is known for how long hosts issue forward, backward and optimizer, and not when: for no longer than that is a device
    idle because of it, and for as long at least as that is longer than its device has work. Other idle time is
    `between-phases`.

What it costs
    The replay without it, as far as ranks have it in common: what one of them takes longer is `slow-rank`. Gradients
    that were reduced while a device was idle between others are then exchanged in the open; where in forward and
    backward it was idle is not recorded, so the interval reaches from the least idle time, all of it in backward, to
    the most, none of it there. A paced
    device may have worked at any time: the price is then that of all paced time, and an upper bound ("at most"). Where
    the driver was asked in which share of the time a kernel ran (`nvidia-smi` calls it utilisation), it is the rest of
    the time, and that in which gradients were exchanged, instead.

What to do
    `torch.compile(model, mode="reduce-overhead")` (CUDA graphs), larger batches, fewer calls that wait for the device
    (`.item()`, `print` of a tensor), fused optimizers (`fused=True`). In allpull's own trainer
    `--set train.compile=reduce-overhead`, and where the model is compiled already, `--set train.cuda_graph=true`.

When it is wrong
    Profilers slow down the host, which then looks like the cause. A device that the host waits for in each step
    (`.item()`) is paced for as long as the host takes to issue that step, even if it computes all the while. Kernels of
    NCCL that wait for other ranks, and of other programs on the same accelerator, count as work of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from allpull.explain.candidate import Candidate, Removal, as_recorded, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.idle_device import LEAST, IdleDevice, idle_device
from allpull.explain.evidence.late.grouping import named
from allpull.explain.evidence.late.pacing import pace_setters
from allpull.explain.remedy import Action, program, sentence, starter
from allpull.replay.whatif.work import lower_median, without_common, without_pacing
from allpull.replay.window import Window
from allpull.schema.explained import Evidence
from allpull.schema.results import Interval
from allpull.units import show_time

UNCOMPILED, COMPILED = ("train.compile", "reduce-overhead"), ("train.cuda_graph", "true")
"""Keys of allpull's own trainer and their values, by whether its model is compiled already."""
WHERE_IDLE = (("forward", "backward"), ("backward",), ())
"""The phases in which a device is idle before the gradients of a step are reduced: usually, at most, and at least."""
KNOWN = 0.5  # of the most that it can be: less is no estimate
HALF = 0.5  # of the ranks: as many or fewer are named


def find(facts: Facts) -> list[Candidate]:
    """The job, where devices are idle, or compute no faster than their hosts issue."""
    window = facts.window
    idle = idle_device(facts)
    if idle.idle_s >= LEAST * facts.step_s:
        return _while_issuing(facts, idle)
    setters = pace_setters(window)
    if not setters.any() or window.paced_s is None:
        return []
    paced_s = float(lower_median(window.paced_s[:, setters].mean(axis=0)))
    few = tuple(np.flatnonzero(setters).tolist()) if setters.mean() <= HALF else ()
    busy_share = None if few else facts.machine.device_busy_share  # that is the mean over all devices
    if busy_share is None:
        most_s, extra = paced_s, []
    else:
        most_s = min(paced_s, (1.0 - busy_share) * facts.step_s + _exchanged_s(window))
        extra = [share("of the time with a kernel on the device", busy_share, "counters of the accelerators")]
    if few:
        who, issues, where = (
            f"{named(few, facts.machine)} wait",
            "their hosts issue work, and all others for them",
            "on these ranks",
        )
        if len(few) == 1:
            who, issues, where = (
                f"{facts.on(few[0])} waits",
                "its host issues work, and all others for it",
                "on this rank",
            )
    else:
        who, issues, where = "Accelerators wait", "their hosts issue work", "on at least half of the ranks"
    title = f"{who} for at most {show_time(most_s)} per step while {issues}"
    what = f"computation that passed while the host was still issuing it, {where}"
    without = partial(without_pacing, most_s=most_s)
    candidate = _candidate(facts, title, seconds(what, paced_s, facts.span), without, *extra)
    return [replace(candidate, bounds=(as_recorded, without))]


def _while_issuing(facts: Facts, idle: IdleDevice) -> list[Candidate]:
    """The job, where devices are idle and hosts issue work meanwhile."""
    if idle.most_s < LEAST * facts.step_s:
        return []  # hosts do something else, which is between the phases
    is_known = idle.usual_s >= KNOWN * idle.most_s
    usual_s = idle.usual_s if is_known else idle.most_s
    title = f"{'' if is_known else 'at most '}{show_time(usual_s)} per step while their hosts issue work"
    what = "device idle while the host issues work, on at least half of the ranks"
    size = seconds(what, Interval(value=usual_s, low=idle.least_s, high=idle.most_s), facts.span)
    ends = zip((usual_s, idle.least_s, idle.most_s), WHERE_IDLE, strict=True)
    without, least, most = (
        partial(without_common, phases=("host",), inside=phases, share=end_s / idle.idle_s) for end_s, phases in ends
    )
    candidate = _candidate(facts, f"Accelerators are idle for {title}", size, without if is_known else most)
    if is_known and idle.least_s == idle.most_s and not _overlaps(facts.window):
        return [candidate]
    return [replace(candidate, bounds=(least, most))]


def _candidate(facts: Facts, title: str, size: Evidence, without: Removal, *more: Evidence) -> Candidate:
    option = _option(facts)
    return Candidate(
        rule="launch-bound",
        kind="job",
        title=title,
        remedy=_remedy(option),
        evidence=(size, share("of the step", size.value / facts.step_s, facts.span), *more),
        without=without,
        least_share=LEAST,
    )


def _overlaps(window: Window) -> bool:
    """Whether gradients are reduced while others are still computed, or the device is idle between these."""
    return window.reductions is not None and bool(window.reductions.lead_s.any())


def _exchanged_s(window: Window) -> float:
    """The time of the kernels that exchange gradients, s per step: they run while the stream of computation is idle."""
    return 0.0 if window.reductions is None else float(window.reductions.seconds.sum()) / max(1, window.steps.size)


def _option(facts: Facts) -> tuple[str, str] | None:
    """A key of allpull's own trainer and its value; None for a script."""
    if facts.machine.compiled is None and facts.start.starter != "train":
        return None
    return COMPILED if facts.machine.compiled else UNCOMPILED


def _remedy(option: tuple[str, str] | None) -> Action:
    """What to do: set ``option``, a key and its value; None: edit the script."""
    in_program = program('torch.compile(model, mode="reduce-overhead")')
    first = in_program if option is None else starter(f"--set {option[0]}={option[1]}", option[0])
    return sentence(first, ", larger batches, fewer .item() calls, fused optimizers")
