"""Accelerators compute most of the time, and they are several times as fast in 16 bits.

What it is
    Tensor cores multiply bfloat16 or float16 at many times the rate of float32. Gradients that are exchanged in 16 bits
    also send half the bytes over the network.

How it is found
    The ranks have accelerators, and forward and backward take at least half of the time, without the time
    that devices may have waited for their hosts (`launch-bound`). Runs of allpull's own trainer
    record their precision: one that already trains in 16 bits gets no such advice.

What it costs
    No measurement of this run can price it: it is advice, with the command that measures it. Scripts get it unless
    they call their network within `torch.autocast`, which is recorded; other ways to use 16 bits are not.

What to do
    `with torch.autocast("cuda", dtype=torch.bfloat16):` around forward and loss, and
    `torch.set_float32_matmul_precision("high")`; in allpull's own trainer `--set train.precision=bf16`. Then
    `allpull compare BEFORE --with AFTER`.

When it is wrong
    Where a script already trains in 16 bits, or is limited by memory and not by arithmetic. Check the accuracy.
"""

from __future__ import annotations

import numpy as np

from allpull.explain.candidate import Candidate, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import per_step
from allpull.explain.evidence.late.pacing import computed_s
from allpull.explain.evidence.start import Start
from allpull.explain.remedy import Action, program, sentence
from allpull.explain.remedy_text import MEASURE_IT, option_or

MOST = 0.5  # of the time: below it other losses come first
NARROW = ("bfloat16", "float16")  # dtypes of autocast that use tensor cores
WIDE = ("fp32", "tf32")
"""What allpull's own trainer may train in that is not 16 bits."""


def find(facts: Facts) -> list[Candidate]:
    """Advice, where accelerators compute most of the time."""
    precision = facts.machine.precision
    if facts.machine.autocast in NARROW:
        return []
    if not facts.machine.accelerators or not facts.step_s > 0 or (precision is not None and precision not in WIDE):
        return []
    computed = computed_s(facts.window, per_step(facts.window, ("forward", "backward")))
    part = float(np.median(computed.mean(axis=0))) / facts.step_s
    if part < MOST:
        return []
    return [
        Candidate(
            rule="mixed-precision",
            kind="advice",
            title="Accelerators compute most of the time: 16-bit arithmetic may be faster"
            f"{', if it is not used yet' if precision is None else ''}",
            remedy=sentence(_remedy(facts.start, precision), MEASURE_IT),
            evidence=(share("share of the time in forward and backward, median rank", part, facts.span),),
        )
    ]


def _remedy(start: Start, precision: str | None) -> Action:
    now = "" if precision is None else f" (now {precision})"
    autocast = sentence(program('with torch.autocast("cuda", dtype=torch.bfloat16):'), " around forward")
    return sentence(option_or(start, "train.precision", "bf16", autocast), now)
