"""Say where a CPU has no instructions for bfloat16: it then emulates them, and half the bits cost more time.

Single precision is the faster one there: steps of bf16 took 1.8 to 2 times as long with the instructions of AVX-512
alone, and 7 to 8 times with those of AVX2. With AVX512_BF16 both took as long, and with AMX those of bf16 took 0.5 to
0.7 of the time (benchmarks/bf16_on_cpus.py).
"""

from __future__ import annotations

import torch

from allpull.kernel import Tree

INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "svebf16", "sve_bf16"})
"""Products and conversions of bfloat16, as Linux and torch call them: of x86, then of Arm."""


def emulated(name: str, device: torch.device, told: frozenset[str] | None = None) -> str:
    """Why ``train.precision = name`` is slow on ``device``, in a sentence; "": it is not, or nobody knows.

    ``told`` stands for what the CPU is said to have.
    """
    if name != "bf16" or device.type != "cpu":
        return ""
    found = instructions() if told is None else told
    if not found or found & INSTRUCTIONS:
        return ""
    return (
        "train.precision: this CPU has no instructions for bfloat16; bf16 is emulated, and slower than fp32: "
        "--set train.precision=fp32"
    )


def instructions(tree: Tree | None = None) -> frozenset[str]:
    """The instruction sets of this CPU that Linux lists, and those that torch finds; none where neither says any.

    POWER lists none in Linux, and before torch 2.13 other systems have nobody to ask.
    """
    fields = (tree or Tree()).fields("proc/cpuinfo")
    listed = (fields.get("flags") or fields.get("Features") or "").split()
    ask = getattr(torch.cpu, "get_capabilities", dict)
    return frozenset(listed) | {name for name, has in ask().items() if has is True}
