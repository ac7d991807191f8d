"""cuDNN tries out its convolutions again and again, because inputs keep changing their shape.

What it is
    With `torch.backends.cudnn.benchmark = True` the first call of a convolution with a new shape of input runs all
    algorithms and keeps the fastest. With one shape that pays off. Where new shapes keep coming (images of many
    sizes; the shorter last batch of an epoch does no harm), each costs from tens of milliseconds to seconds.

How it is found
    By the flag and by the shapes of input, which are counted from step 4 on where the flag is set, an accelerator is in
    use and a network has convolutions: at least 16 new shapes, at least one in ten steps, and new ones still in the
    second half of the steps.

What it costs
    Steps with a new shape were not timed apart, so it is advice without a price; long ones also show as stalls
    (`common-stall`).

What to do
    `torch.backends.cudnn.benchmark = False`; or few shapes: resize or pad to sizes that are multiples of 64, say. Then
    `allpull compare BEFORE --with AFTER`.

When it is wrong
    Where the number of shapes is bounded and the run was short: once all of them are known, trying out ends.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence
from allpull.explain.remedy_text import MEASURE_IT, option_or

LEAST_SHAPES = 16
LEAST_SHARE = 0.1  # of steps with a new shape
STILL = 0.25  # of the shapes: so many are new in the second half of the steps


def find(facts: Facts) -> list[Candidate]:
    """Advice, where new shapes keep coming."""
    seen = facts.machine.input_shapes
    if len(seen) < 2 or not all(one.benchmark for one in seen):
        return []
    first, last = seen[0], seen[-1]
    shapes, steps = last.shapes, last.step - first.step
    middle = max((one.shapes for one in seen if one.step <= first.step + steps / 2), default=0)
    if shapes < LEAST_SHAPES or shapes < LEAST_SHARE * steps or shapes - middle < STILL * shapes:
        return []
    source = f"inputs from step {first.step:,} to {last.step:,}"
    return [
        Candidate(
            rule="cudnn-benchmark",
            kind="advice",
            title=f"cuDNN tries out its convolutions for each new shape of input: {shapes:,} in {steps:,} steps",
            remedy=sentence(
                option_or(
                    *(facts.start, "train.try_convolutions", "false"),
                    program("torch.backends.cudnn.benchmark = False"),
                ),
                ", or few shapes (pad or resize to multiples of 64)",
                MEASURE_IT,
            ),
            evidence=(
                count("different shapes of input of one rank", shapes, source),
                share("steps with a new shape", shapes / steps, source),
            ),
        )
    ]
