"""Ranks run on CPUs that are far from their GPU: on another socket.

What it is
    A rank that is bound to CPUs of another socket than its GPU sends all commands, and copies all batches, over the
    link between sockets. Its memory is there, too: Linux allocates it near the CPU that first writes to it.

How it is found
    By the CPUs that a rank may run on, the memory node of its GPU and the distance between nodes, as Linux reports
    them, recorded when the rank starts to use its GPU. A rank is named where each of its CPUs is at a distance of at
    least 20, which is another socket (10 is the node itself, 11 to 16 another node of the socket). Ranks that are not
    bound run anywhere, and are not named.

What it costs
    It was not measured how fast the rank would be on other CPUs, so it is advice without a price: little where the GPU
    is busy, more where the host issues many small operations or copies large batches.

What to do
    Bind each rank to the CPUs near its GPU: `srun --gpu-bind=closest`, `torchrun --numa-binding=node`,
    `numactl --cpunodebind=N --membind=N`; in allpull's own launchers `--set launch.bind=numa`, where devices are
    numbered in the order of memory nodes. `nvidia-smi topo -m` shows which CPUs are near which GPU.

When it is wrong
    Where the near CPUs are taken on purpose, by a loader or by another job. Virtual machines may report wrong nodes.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.grouping import named
from allpull.explain.remedy import sentence, starter
from allpull.explain.remedy_text import TOPOLOGY, near_gpu

ANOTHER_SOCKET = 20  # ACPI SLIT, as Linux takes it where firmware says nothing (REMOTE_DISTANCE)


def find(facts: Facts) -> list[Candidate]:
    """Advice, where ranks are bound to another socket than that of their GPU."""
    placed = facts.machine.localities
    ranks = tuple(sorted(rank for rank, one in placed.items() if one.distance >= ANOTHER_SOCKET))
    if not ranks:
        return []
    first = placed[ranks[0]]
    which = facts.on(ranks[0]) if len(ranks) == 1 else named(list(ranks), facts.machine)
    return [
        Candidate(
            rule="far-from-gpu",
            kind="advice",
            title=f"{which} {'runs' if len(ranks) == 1 else 'run'} on CPUs of another socket than the GPU",
            remedy=sentence(
                "bind ranks near their GPUs: ",
                near_gpu(facts.start),
                ", or ",
                starter(f"numactl --cpunodebind={first.node} --membind={first.node}"),
                f" for rank {ranks[0]}; check: ",
                TOPOLOGY,
            ),
            evidence=(
                count("ranks on another socket than their GPU", len(ranks), "CPUs and PCI devices of the kernel"),
                count(f"distance of rank {ranks[0]} to the memory node of its GPU", first.distance, "kernel"),
            ),
            ranks=ranks,
        )
    ]
