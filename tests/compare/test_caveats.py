"""What a comparison says about itself."""

from __future__ import annotations

import math

import pytest

from allpull.analyse.effect import Effect
from allpull.compare.caveats import Side, caveats


def effect(ratio: float) -> Effect:
    return Effect(value=math.log(ratio), error=None, freedom=None, basis="unknown", within=None, spread=None)


@pytest.mark.parametrize(
    ("steady", "whole", "words"),
    [(0.99, 1.25, "throughput_with_pauses is 25.0 % higher"), (1.2, 0.9, "is 10.0 % lower"), (1.2, 1.21, None)],
)
def test_what_steps_that_are_left_out_took_is_said_where_it_changes_the_answer(
    steady: float, whole: float, words: str | None
) -> None:
    """A fault in steps with a checkpoint: without it the rate of the other steps is the same."""
    nothing = [Side(name=name, runs=[], measures=[]) for name in ("before", "after")]
    both = {"throughput": effect(steady), "throughput_with_pauses": effect(whole)}
    first = caveats(nothing[0], nothing[1], both, "throughput")[0]
    assert (words in first) if words else first.startswith("the run-to-run variation")
    assert caveats(nothing[0], nothing[1], both, "throughput_with_pauses")[0].startswith("the run-to-run variation")
