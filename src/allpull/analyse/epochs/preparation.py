"""What a program prepares for an epoch: work of its first step that other steps do not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from allpull.analyse.steps.pauses import Moments

KNOWN = (
    *("input_ns", "copy_ns", "forward_ns", "backward_ns", "optimizer_ns"),
    *("evaluation_ns", "checkpoint_ns", "collective_ns"),
)


def prepared_ns(records: Mapping[str, Moments], first_steps: Sequence[int]) -> Moments:
    """How much longer each step is outside of known phases than the usual one that begins no epoch; 0: not known."""
    rest_ns = records["end_ns"] - records["begin_ns"] - sum(records[name] for name in KNOWN)
    others = ~np.isin(records["step"], first_steps)
    usual_ns = int(np.median(rest_ns[others])) if others.any() else int(rest_ns.max(initial=0))
    longer: Moments = np.maximum(rest_ns - usual_ns, 0)
    return longer


def outside_ns(begin_ns: int, length_ns: int, spans: Iterable[tuple[int, int]]) -> int:
    """The moment when ``length_ns`` have passed since ``begin_ns`` outside of ``spans``, which are in order."""
    end_ns = begin_ns + length_ns
    for span_begin_ns, span_end_ns in spans:
        if begin_ns <= span_begin_ns < end_ns:
            end_ns += span_end_ns - span_begin_ns
    return end_ns
