"""InfiniBand carries gradients, and each byte passes through the memory of the host first.

What it is
    With GPUDirect RDMA the network card reads and writes the memory of the GPU. Without it each byte is copied to the
    memory of the host and back, which limits the rate and takes bandwidth from the loader.

How it is found
    By the log of NCCL (`NCCL_DEBUG=INFO`): ranks send `via NET/IB`, and no channel of any rank ends in `GDRDMA`. GPUs
    for desktops cannot do it, and are not reported.

What it costs
    How fast the direct way would be was not measured, so it is advice without a price.

What to do
    Load the module `nvidia-peermem` on all hosts (`modprobe nvidia-peermem`), or use a kernel and driver with DMA-BUF;
    `unset NCCL_NET_GDR_LEVEL`. Then look for `GDRDMA` in the log.

When it is wrong
    Where card and GPU are far from each other, on different processors, NCCL leaves it out on purpose.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import environment, sentence, shell
from allpull.explain.rules.nccl_sockets import SOURCE

NETWORK = "IB"  # that of NCCL itself; plug-ins do not all say whether they are direct
DESKTOP = ("GeForce", "RTX", "TITAN", "Quadro")
"""In the names of GPUs without GPUDirect RDMA, or that are seldom set up for it."""
LEVEL = "NCCL_NET_GDR_LEVEL"


def find(facts: Facts) -> list[Candidate]:
    """Advice, where InfiniBand is used without GPUDirect RDMA."""
    nccl, gpus = facts.transports, facts.machine.accelerators
    sending = [rank for rank, networks in nccl.between_hosts.items() if networks == {NETWORK}]
    is_direct = any(one.direct for log in nccl.ranks.values() for one in log.transports)
    if not sending or is_direct or not gpus or any(part in name for name in gpus for part in DESKTOP):
        return []
    is_off = any(LEVEL in log.settings for log in nccl.ranks.values())
    load = sentence(shell("modprobe nvidia-peermem"), " on all hosts")
    remedy = environment(f"unset {LEVEL}") if is_off else load
    return [
        Candidate(
            rule="nccl-no-gdr",
            kind="advice",
            title="InfiniBand carries gradients through the memory of hosts, without GPUDirect RDMA",
            remedy=sentence(remedy, "; the log of NCCL then has GDRDMA in its channels"),
            evidence=(count("ranks that send through InfiniBand, and none directly", len(sending), SOURCE),),
        )
    ]
