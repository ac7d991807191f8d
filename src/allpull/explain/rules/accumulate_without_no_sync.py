"""Gradients are reduced in each backward pass of an update, although only their sum is needed.

What it is
    The program accumulates gradients over several backward passes before the optimizer steps, and DDP reduces them in
    each. All ranks meet, and all bytes are sent, several times per update instead of once.

How it is found
    By the reductions that each step lists: the same network is reduced more than once, and the optimizer does nothing
    in between. Where an optimizer steps between two reductions (several updates per step, or L-BFGS), each is needed.
    Nor does a program accumulate that in most updates reduces once: in the others it may have skipped an update, as a
    loss that overflows makes it do.

What it costs
    The replay in which only the last of these reductions takes place: ranks neither meet nor send in the others.

What to do
    Run all passes of an update but the last under `no_sync`, forward included:
    `with model.no_sync(): model(batch).backward()`. Accelerate does so in `accelerator.accumulate(model)`, and
    Lightning and the Trainer of Transformers by themselves where they accumulate.

When it is wrong
    Under `no_sync` each rank holds the gradients of its own passes, as it would anyway. A program that uses
    averaged gradients between the passes needs them reduced there, as sharpness-aware minimisation does (SAM), which
    moves the weights by them. On an accelerator only the last reduction of a step is timed, and the rule is silent.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from allpull.explain.candidate import Candidate, count, seconds, size
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence
from allpull.replay.engine import event_times
from allpull.replay.whatif.network import without_reductions
from allpull.replay.window import REDUCE, Window

TWICE = 2  # in most updates: fewer, and some updates are skipped
IDLE_S = 1e-6  # of an optimizer between two reductions: rounding of time stamps
IDLE_SHARE = 1e-5  # of a step: by so much host clocks differ in rate, and work is scaled to one of them


def find(facts: Facts) -> list[Candidate]:
    """The job, where a network is reduced several times per update."""
    window, lane = facts.window, facts.window.reductions
    if lane is None or lane.networks is None or window.ranks < 2:
        return []
    needless = needless_reductions(window)
    kept = int((~needless).sum())
    if not needless.any() or not kept:
        return []
    times = needless.size / kept
    blocked_s = event_times(window).blocked_s[window.kind == REDUCE][needless]
    bytes_evidence = (
        ()
        if lane.size_bytes is None
        else (size("gradients of one reduction", float(lane.size_bytes.sum()), "buckets of DDP"),)
    )
    return [
        Candidate(
            rule="accumulate-without-no-sync",
            kind="job",
            title=f"Gradients are reduced {times:.3g} times per update; where they only add up, once is enough",
            remedy=sentence(
                "all backward passes of an update but the last, with their forward passes, inside ",
                program("with model.no_sync():"),
            ),
            evidence=(
                seconds(
                    "time that ranks are blocked in reductions before the last of an update",
                    float(blocked_s.sum(axis=0).mean()) / window.steps.size,
                    facts.span,
                ),
                count("reductions per update", times, facts.span),
                *bytes_evidence,
            ),
            without=partial(without_reductions, needless=needless),
        )
    ]


def needless_reductions(window: Window) -> NDArray[np.bool_]:
    """Which reductions are followed by another one of the same networks before an optimizer steps, (reductions,)."""
    lane = window.reductions
    events = np.flatnonzero(window.kind == REDUCE)
    needless = np.zeros(events.size, dtype=np.bool_)
    if lane is None or lane.networks is None:
        return needless
    worked_s = window.work.get("optimizer", np.zeros((window.events, window.ranks))).max(axis=1)
    stepped_s = np.cumsum(worked_s)
    idle_s = IDLE_S + IDLE_SHARE * window.measured_s / max(1, window.steps.size)
    step, networks = window.step_of[events], lane.networks
    usual = {one: _usual_count(step[networks == one]) for one in np.unique(networks).tolist()}
    following: dict[tuple[int, int], int] = {}
    for place in range(events.size - 1, -1, -1):
        key = (int(step[place]), int(networks[place]))
        later = following.get(key)
        is_same_update = later is not None and stepped_s[later] - stepped_s[events[place]] <= idle_s
        needless[place] = is_same_update and usual[key[1]] >= TWICE
        following[key] = int(events[place])
    return needless


def _usual_count(step_of: NDArray[np.intp]) -> float:
    """How often something happens in the median step of those in which it does; ``step_of``: of each time."""
    return float(np.median(np.unique(step_of, return_counts=True)[1]))
