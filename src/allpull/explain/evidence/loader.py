"""What all ranks wait for their loaders alike: not what some wait longer, nor what first batches take longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.outliers import mean_interval
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Bools, Window
from allpull.schema.results import Interval

LEAST = 0.04  # of a step: to take a batch from a queue, or to make a small one, is no fault
BEHIND = 2.0  # times what at least half of the ranks wait: the rest of it is no matter of all ranks
SATURATED = 0.9  # of the CPUs: workers that have no more of them do not get faster by being more
ALONE = 1  # process of a rank: itself, without workers


def common_input(facts: Facts) -> Interval | None:
    """What at least half of the ranks wait for their loaders in an ordinary step, s; None where that is no matter.

    Of two ranks that is what the one waits that waits less: where one has it all, it is no matter of both.
    """
    input_s = facts.window.per_step("input")
    usual = ~(facts.first | facts.window.odd)
    if usual.sum() < MIN_POINTS or _shared_s(input_s[usual]) < LEAST * facts.step_s:
        return None
    rank = int((input_s[usual].mean(axis=0) == _shared_s(input_s[usual])).argmax())
    return mean_interval(input_s[usual, rank])


def without_common_input(window: Window, first: Bools, behind: tuple[int, ...]) -> Window:
    """No rank waits for its loader, but for what some wait longer than the others, and what first batches take.

    ``first`` (steps,): the first batch of an epoch. ``behind``: ranks that stand out; so do those, whether that is sure
    or not, that wait ``BEHIND`` times as long as others.
    """
    if "input" not in window.work:
        return window
    input_s = window.per_step("input")
    common_s = _common(input_s, first | window.odd, behind)
    kept = np.divide(input_s - common_s, input_s, out=np.zeros_like(input_s), where=input_s > 0)
    return replace(window, work={**window.work, "input": window.work["input"] * kept[window.step_of]})


def _common(input_s: Floats, unusual: Bools, behind: tuple[int, ...]) -> Floats:
    """The part of each wait that is common, shape (steps, ranks)."""
    common_s = input_s.copy()
    is_behind = input_s.mean(axis=0) > BEHIND * _shared_s(input_s)
    is_behind[list(behind)] = True
    if is_behind.any() and not is_behind.all():
        usual_s = np.median(input_s[:, ~is_behind], axis=1, keepdims=True)
        common_s[:, is_behind] = np.minimum(input_s[:, is_behind], usual_s)
    if unusual.any() and not unusual.all():
        common_s[unusual] = np.minimum(common_s[unusual], np.median(common_s[~unusual], axis=0))
    return common_s


def _shared_s(input_s: Floats) -> float:
    """What at least half of the ranks wait at the least, s a step; of (steps, ranks)."""
    return float(lower_median(input_s.mean(axis=0)))


def has_no_cpu_left(facts: Facts) -> bool:
    """Whether loader workers keep the CPUs of every host busy."""
    shares = [facts.machine.busy_share(host) for host in facts.machine.host_names]
    started = facts.machine.started
    return started is not None and started > ALONE and all(one is not None and one >= SATURATED for one in shares)
