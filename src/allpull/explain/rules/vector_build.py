"""The CPUs have vector instructions that torch does not use.

What it is
    A build for the oldest processor of a cluster, or a variable that selects other kernels, leaves AVX2 or AVX-512
    unused. Computation and augmentation on CPUs then take up to several times as long.

How it is found
    By what torch reports (`torch.backends.cpu.get_cpu_capability()`, or `ATEN_CPU_CAPABILITY` in the environment),
    compared with the instruction sets of the hosts.

What it costs
    No measurement of this run can price it. It is advice, with the command that measures it.

What to do
    Unset `ATEN_CPU_CAPABILITY`; install a build for this processor (the wheels of PyTorch have all kernels). Measure
    with `python -m timeit -s "import torch; x = torch.randn(2**22)" "x.exp()"`, before and after.

When it is wrong
    Where accelerators do all computation and no sample is decoded on the CPU, it costs nothing.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import environment, sentence, shell

PLAIN = frozenset({"default", "no avx"})
"""Torch's names of kernels without vector instructions."""
WIDE = ("avx512f", "avx2", "sve", "vsx")
"""Instruction sets with kernels in torch, the widest first."""


def find(facts: Facts) -> list[Candidate]:
    """Advice, where torch uses no vector instructions on CPUs that have them."""
    used = (facts.machine.torch_vector or "").strip().lower()
    unused = [name for name in WIDE if name in facts.machine.vector]
    if used not in PLAIN or not unused:
        return []
    return [
        Candidate(
            rule="vector-build",
            kind="advice",
            title=f"The CPUs have {unused[0]}, but torch does not use it",
            remedy=sentence(
                environment("unset ATEN_CPU_CAPABILITY", "ATEN_CPU_CAPABILITY"),
                ", or install a build for this CPU; then: ",
                shell('python -m timeit -s "import torch; x = torch.randn(2**22)" "x.exp()"'),
            ),
            evidence=(
                count("vector instruction sets of the CPUs that torch does not use", len(unused), "hosts and torch"),
            ),
        )
    ]
