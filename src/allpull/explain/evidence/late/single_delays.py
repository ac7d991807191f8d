"""Tell ranks that are delayed one at a time from ranks that all vary, and what is left without such delays.

In either case another rank is late in each step, but what a remedy leaves differs: without delays that come one at a
time, ranks vary as much as the other ranks of the same steps do. Where all vary, that variation is the loss itself.

The spacings of a step tell which it is. Of N equal ranks with exponential delays the last is on average twice as far
behind the last but one as that one is behind the one before (Rényi 1953, Acta Math. Hung. 4); of normal jitter it is
less than that. A rank that alone is delayed is far behind all others, by more than chance makes of few steps.
"""

from __future__ import annotations

import math

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.replay.window import Bools

APART = 3.0  # times the next spacing: twice is that of exponential delays on all ranks
ERRORS = 2.0  # standard errors beyond that: of 35 steps in which all ranks vary, some have so much by chance
LEAST_RANKS = 3  # two have only one spacing
USUAL = 0.95  # of steps without a delay have a last rank that is behind by less
ROUNDS = 4  # which steps are delayed, and how ranks vary otherwise, depend on each other


def are_single(deviations_s: Floats) -> bool:
    """Whether ranks are delayed one at a time; ``deviations_s`` (steps, ranks), of each rank from its usual step.

    >>> one_late, all_vary = np.arange(3.0) + [0, 0, 20], np.array([0.0, 1.0, 3.0])
    >>> are_single(np.tile(one_late, (8, 1))), are_single(np.tile(all_vary, (8, 1)))
    (True, False)
    """
    if deviations_s.shape[1] < LEAST_RANKS:
        return False
    ordered = np.sort(deviations_s, axis=1)
    last_s, before_s = (ordered[:, place] - ordered[:, place - 1] for place in (-1, -2))
    more_s = last_s - APART * before_s
    return float(more_s.mean()) > ERRORS * float(more_s.std()) / math.sqrt(more_s.size)


def without_delays(deviations_s: Floats, seed: int = 0) -> Floats:
    """``deviations_s`` where the rank that is delayed in a step deviates as another rank does in some other step.

    A step is delayed if its last rank is behind the mean of the others by more than the last of as many equal ranks
    usually is. By how much ranks deviate from the others is taken from all ranks that are not delayed, and enlarged to
    the spread of a rank around the mean of others that do not include it.
    """
    steps, ranks = deviations_s.shape
    rows, last = np.arange(steps), deviations_s.argmax(axis=1)
    is_last: Bools = np.zeros(deviations_s.shape, dtype=np.bool_)
    is_last[rows, last] = True
    others_s = (deviations_s.sum(axis=1) - deviations_s[rows, last]) / (ranks - 1)
    behind_s = deviations_s[rows, last] - others_s
    delayed = np.ones(steps, dtype=np.bool_)
    usual_s = np.zeros(1)
    for _ in range(ROUNDS):
        alone = is_last & delayed[:, None]
        level_s = np.where(delayed, others_s, deviations_s.mean(axis=1))[:, None]
        counted = np.where(delayed, ranks - 1, ranks)
        wider = np.sqrt(ranks / (ranks - 1) * counted / (counted - 1))[:, None]
        usual_s = ((deviations_s - level_s) * wider)[~alone]
        delayed = behind_s > np.quantile(usual_s, USUAL ** (1 / ranks))
    left_s = deviations_s.copy()
    drawn_s = np.random.default_rng(seed).choice(usual_s, size=steps)
    left_s[rows, last] = np.where(delayed, np.minimum(others_s + drawn_s, left_s[rows, last]), left_s[rows, last])
    return left_s
