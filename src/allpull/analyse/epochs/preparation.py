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
    """How much longer each step is outside of known phases than those that begin no epoch; 0: not known.

    Once in so many steps a program pauses (logging, saving), and may do so where an epoch begins: then at least as many
    of the other steps are as long. Where fewer are, these are stalls.
    """
    rest_ns = records["end_ns"] - records["begin_ns"] - sum(records[name] for name in KNOWN)
    is_first = np.isin(records["step"], first_steps)
    others_ns = np.sort(rest_ns[~is_first])
    stalls = min(max(int(is_first.sum()) - 1, 1), others_ns.size // 2)
    usual_ns = int(others_ns[-1 - stalls]) if others_ns.size else int(rest_ns.max(initial=0))
    longer: Moments = np.maximum(rest_ns - usual_ns, 0)
    return longer


def outside_ns(begin_ns: int, length_ns: int, spans: Iterable[tuple[int, int]]) -> int:
    """The moment when ``length_ns`` have passed since ``begin_ns`` outside of ``spans``, which are in order."""
    end_ns = begin_ns + length_ns
    for span_begin_ns, span_end_ns in spans:
        if begin_ns <= span_begin_ns < end_ns:
            end_ns += span_end_ns - span_begin_ns
    return end_ns


def between_ns(begin_ns: int, end_ns: int, spans: Iterable[tuple[int, int]]) -> int:
    """How much of the time from ``begin_ns`` to ``end_ns`` is outside of ``spans``, which are disjoint.

    >>> between_ns(0, 10, [(2, 4), (8, 12)])
    6
    """
    return end_ns - begin_ns - sum(max(0, min(end_ns, end) - max(begin_ns, begin)) for begin, end in spans)
