"""GPUs of one host exchange gradients through its memory, although they could do so directly.

What it is
    GPUs that NVLink connects exchange data directly, many times as fast as through shared memory of the host. NCCL
    does without it where it is configured to (`NCCL_P2P_DISABLE=1`, a workaround that outlives its reason), or where
    ranks are in containers that do not share what it needs.

How it is found
    By the log of NCCL (`NCCL_DEBUG=INFO`): no channel of any rank goes `via P2P`, some go `via SHM`, and the GPUs
    are of a kind that NVLink connects, by their names (SXM, HBM3, NVL).

What it costs
    How fast the direct way would be was not measured, so it is advice without a price.

What to do
    `unset NCCL_P2P_DISABLE NCCL_P2P_LEVEL`; containers with `--ipc=host`, all GPUs of the host visible in each. Check
    with `nvidia-smi topo -m` and `nvidia-smi nvlink --status`.

When it is wrong
    Between cards in PCIe slots of different processors shared memory is the right way; such cards are not reported.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import environment, sentence
from allpull.explain.remedy_text import TOPOLOGY
from allpull.explain.rules.nccl_sockets import SOURCE

LINKED = ("SXM", "HBM3", "NVL", "GB200", "GH200")
"""In the names of GPUs that NVLink connects."""
VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
CONTAINERS = sentence("containers with --ipc=host, and all GPUs visible in each")


def find(facts: Facts) -> list[Candidate]:
    """Advice, where linked GPUs do not exchange directly."""
    nccl, gpus = facts.transports, facts.machine.accelerators
    kinds = {rank: {one.kind for one in log.transports} for rank, log in nccl.ranks.items()}
    through_host = sorted(rank for rank, of_rank in kinds.items() if "SHM" in of_rank)
    if not through_host or any("P2P" in of_rank for of_rank in kinds.values()):
        return []
    if not gpus or not all(any(part in name for part in LINKED) for name in gpus):
        return []
    is_off = any(name in log.settings for log in nccl.ranks.values() for name in VARIABLES)
    remedy = environment(f"unset {' '.join(VARIABLES)}") if is_off else CONTAINERS
    return [
        Candidate(
            rule="nccl-no-p2p",
            kind="advice",
            title="GPUs of one host exchange gradients through its memory, not through NVLink",
            remedy=sentence(remedy, "; check: ", TOPOLOGY),
            evidence=(count("ranks that send through shared memory, and none directly", len(through_host), SOURCE),),
        )
    ]
