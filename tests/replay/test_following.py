"""Which calls follow which: found for all events at once as by following each rank by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.replay.window import CALL, REDUCE, STEP, Bools, following_calls


def one_rank_after_the_other(kind: list[int], use: list[int], present: Bools) -> list[list[bool]]:
    follows = np.zeros(present.shape, dtype=np.bool_)
    for rank in range(present.shape[1]):
        before = None
        for event, name in enumerate(kind):
            if name == CALL and not present[event, rank]:
                continue
            if name == CALL and before is not None and kind[before] == CALL and use[before] == use[event]:
                follows[event, rank] = bool((present[before] == present[event]).all())
            before = event
    return [list(map(bool, row)) for row in follows]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_call_follows_that_of_the_same_use_and_ranks(data: st.DataObject) -> None:
    ranks, events = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    kind = data.draw(st.lists(st.sampled_from([CALL, CALL, REDUCE, STEP]), min_size=events, max_size=events))
    use = [data.draw(st.integers(0, 1)) if name == CALL else -1 for name in kind]
    rows = [
        data.draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks).filter(any))
        if name == CALL
        else [False] * ranks
        for name in kind
    ]
    present = np.array(rows, dtype=np.bool_)
    found = following_calls(np.array(kind, dtype=np.int8), np.array(use, dtype=np.intp), present)
    assert found.tolist() == one_rank_after_the_other(kind, use, present)


def test_groups_that_call_in_turn_follow_themselves() -> None:
    present = np.array([[True, True, False, False], [False, False, True, True]] * 3)
    found = following_calls(np.zeros(6, dtype=np.int8), np.zeros(6, dtype=np.intp), present)
    assert found.tolist() == [[False] * 4, [False] * 4, *present[2:].tolist()]
