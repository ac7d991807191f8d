"""Re-estimate how long buckets took from the time in which the links between hosts had data to send.

The ends of steps alone cannot distinguish a lane that is busy throughout backward from one that is idle and takes long
for every bucket because hosts have to forward it: both end at the same time. The difference decides what a late rank
costs, because a busy lane hides it. The links show it. With ``busy_s`` seconds per step of data in flight on the
busiest link, and w_b the share of bucket b in the bytes, a bucket takes ::

    seconds_b = n·w_b + c,    n = min(busy_s, min_j (D − R_j)/W_j),    c = min_j (D − R_j − n·W_j)/(B − j)

where R_j, W_j and D are those of ``replay.recording.bucket_times``, and c is the time of each of the B buckets that the
links do not explain, whatever its size (Hockney 1994, Parallel Computing 20). The last bucket ends as recorded: D is
met.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allpull.replay.engine import event_times
from allpull.replay.window import REDUCE, Window

EXPLAINED = 1.25  # times the busy time of the links: lanes that took no longer were as busy as the links


def with_links(window: Window, busy_s: float | None) -> Window:
    """``window`` with buckets that take as long as its links were busy, plus a part that does not depend on bytes.

    ``busy_s``: of the busiest link, s per step; None: not known. Unchanged where lanes were no busier than the links,
    and at the level of steps.
    """
    lane = window.reductions
    if lane is None or busy_s is None or lane.buckets < 2 or lane.size_bytes is None or lane.size_bytes.sum() <= 0:
        return window
    if not lane.seconds.size:
        return window
    busy_s *= window.steps.size / lane.seconds.shape[0]  # of each reduction
    if float(np.median(lane.seconds.sum(axis=1))) <= EXPLAINED * busy_s:
        return window
    reduces = window.kind == REDUCE
    ready_s = (event_times(window).stand_s[reduces][:, None, :] - lane.lead_s).max(axis=2)
    after_s = np.cumsum(lane.seconds[:, ::-1], axis=1)[:, ::-1]
    left_s = (ready_s + after_s).max(axis=1, keepdims=True) - ready_s  # D − R_j
    share = np.maximum(lane.size_bytes / lane.size_bytes.sum(), 0.0)
    share_after = np.cumsum(share[::-1])[::-1]
    most_s = np.divide(left_s, share_after, out=np.full_like(left_s, np.inf), where=share_after > 0).min(axis=1)
    sent_s = np.clip(np.minimum(busy_s, most_s), 0, None)[:, None]
    buckets_after = np.arange(lane.buckets, 0, -1)
    each_s = np.maximum(((left_s - sent_s * share_after) / buckets_after).min(axis=1, keepdims=True), 0.0)
    return replace(window, reductions=replace(lane, seconds=sent_s * share + each_s))
