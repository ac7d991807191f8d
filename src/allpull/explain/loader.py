"""What all ranks wait for their loaders alike: not what one rank waits longer, nor what first batches take longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allpull.analyse.grid import Floats
from allpull.analyse.statistics import MIN_POINTS
from allpull.analyse.window import Window
from allpull.explain.facts import Facts
from allpull.explain.persistent import mean_interval
from allpull.schema.results import Interval

LEAST = 0.04  # of a step: to take a batch from a queue, or to make a small one, is no fault
SATURATED = 0.9  # of the CPUs: workers that have no more of them do not get faster by being more
ALONE = 1  # process of a rank: itself, without workers


def common_input(facts: Facts) -> Interval | None:
    """What the median rank waits for its loader in an ordinary step, s; None where that is not worth a word."""
    waited = np.median(facts.window.per_step("input"), axis=1)[~facts.first]
    if waited.size < MIN_POINTS or float(waited.mean()) < LEAST * facts.step_s:
        return None
    return mean_interval(waited)


def without_common_input(window: Window, first: np.ndarray, behind: tuple[int, ...]) -> Window:
    """No rank waits for its loader, but for what ranks ``behind`` wait longer than the others, and first batches take.

    ``first`` (steps,): the first batch of an epoch.
    """
    if "input" not in window.work:
        return window
    input_s = window.per_step("input")
    common_s = _common(input_s, first, behind)
    kept = np.divide(input_s - common_s, input_s, out=np.zeros_like(input_s), where=input_s > 0)
    return replace(window, work={**window.work, "input": window.work["input"] * kept[window.step_of]})


def _common(input_s: Floats, first: np.ndarray, behind: tuple[int, ...]) -> Floats:
    """The part of each wait that is common, shape (steps, ranks)."""
    common_s = input_s.copy()
    others = np.setdiff1d(np.arange(input_s.shape[1]), behind)
    if behind and others.size:
        usual = np.median(input_s[:, others], axis=1, keepdims=True)
        common_s[:, list(behind)] = np.minimum(input_s[:, list(behind)], usual)
    if first.any() and not first.all():
        common_s[first] = np.minimum(common_s[first], np.median(common_s[~first], axis=0))
    return common_s


def has_no_cpu_left(facts: Facts) -> bool:
    """Whether loader workers keep the CPUs of every host busy."""
    shares = [facts.machine.busy_share(host) for host in facts.machine.host_names]
    started = facts.machine.started
    return started is not None and started > ALONE and all(one is not None and one >= SATURATED for one in shares)
