"""Most of the time is computing on accelerators, which are several times as fast in 16 bits.

What it is
    Tensor cores multiply in bfloat16 or float16 at many times the rate of float32; half the bytes go over the network,
    too, where gradients are exchanged in them.

How it is found
    The ranks have accelerators, and forward and backward take at least half of the time. A run of allpull's own trainer
    says in which precision it trains: one that is in 16 bits already is not advised.

What it costs
    No measurement of this run can price it: it is advice, with the command that measures it. It is said of scripts that
    may use it already, for what they compute in is not recorded.

What to do
    `with torch.autocast("cuda", dtype=torch.bfloat16):` around forward and loss, and
    `torch.set_float32_matmul_precision("high")`; in allpull's own trainer `--set train.precision=bf16`. Then
    `allpull compare BEFORE --with AFTER`.

When it is wrong
    Where a script already trains in 16 bits, or memory and not arithmetic limits it. Accuracy has to be looked at.
"""

from __future__ import annotations

import numpy as np

from allpull.explain.evidence.cpu_waiting import per_step
from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, share

MOST = 0.5  # of the time: below it other things come first
WIDE = ("fp32", "tf32")
"""What allpull's own trainer may train in that is not 16 bits."""


def find(facts: Facts) -> list[Suspect]:
    """Advice, where accelerators compute most of the time."""
    told = facts.machine.precision
    if not facts.machine.accelerators or not facts.step_s > 0 or (told is not None and told not in WIDE):
        return []
    part = float(np.median(per_step(facts.window, ("forward", "backward")).mean(axis=0))) / facts.step_s
    if part < MOST:
        return []
    return [
        Suspect(
            rule="mixed-precision",
            kind="advice",
            title="Most of the time accelerators compute: 16-bit arithmetic may be faster"
            f"{', if it is not used yet' if told is None else ''}",
            remedy=f"{_remedy(told)}; measure it: allpull compare BEFORE --with AFTER",
            options=() if told is None else ("train.precision",),
            evidence=(share("of the time is forward and backward, median rank", part, facts.span),),
        )
    ]


def _remedy(told: str | None) -> str:
    if told is not None:
        return f"--set train.precision=bf16 (now {told})"
    return 'with torch.autocast("cuda", dtype=torch.bfloat16): around forward'
