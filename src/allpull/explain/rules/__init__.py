"""One fault per file: facts in, candidates out. The head of each file is its manual page.

A rule is ``find(facts) -> list[Candidate]``; ``pricing`` says what they cost. A new rule is a file here and a line in
``RULES``; other packages add theirs by entry points of the group ``allpull.rules``.
"""

from __future__ import annotations

from allpull.registry import Table

RULES = Table(
    kind="rule",
    group="allpull.rules",
    builtin={
        "no-exchange": "allpull.explain.rules.no_exchange:find",
        "same-samples": "allpull.explain.rules.same_samples:find",
        "slow-rank": "allpull.explain.rules.slow_rank:find",
        "uneven-hosts": "allpull.explain.rules.uneven_hosts:find",
        "uneven-shards": "allpull.explain.rules.uneven_shards:find",
        "slow-loader-rank": "allpull.explain.rules.slow_loader_rank:find",
        "cpu-contention": "allpull.explain.rules.cpu_contention:find",
        "uneven-steps": "allpull.explain.rules.uneven_steps:find",
        "uneven-batches": "allpull.explain.rules.uneven_batches:find",
        "rotating-imbalance": "allpull.explain.rules.rotating_imbalance:find",
        "hidden-losses": "allpull.explain.rules.hidden_losses:find",
        "common-stall": "allpull.explain.rules.common_stall:find",
        "drift": "allpull.explain.rules.drift:find",
        "computational-scaling": "allpull.explain.rules.computational_scaling:find",
        "input-bound": "allpull.explain.rules.input_bound:find",
        "preprocess-offline": "allpull.explain.rules.preprocess_offline:find",
        "first-batch-stall": "allpull.explain.rules.first_batch_stall:find",
        "sequential-evaluation": "allpull.explain.rules.sequential_evaluation:find",
        "uneven-evaluation": "allpull.explain.rules.uneven_evaluation:find",
        "evaluation-share": "allpull.explain.rules.evaluation_share:find",
        "sequential-checkpoint": "allpull.explain.rules.sequential_checkpoint:find",
        "checkpoint-share": "allpull.explain.rules.checkpoint_share:find",
        "slow-link": "allpull.explain.rules.slow_link:find",
        "shared-uplink": "allpull.explain.rules.shared_uplink:find",
        "network-bound": "allpull.explain.rules.network_bound:find",
        "nccl-sockets": "allpull.explain.rules.nccl_sockets:find",
        "nccl-interface": "allpull.explain.rules.nccl_interface:find",
        "nccl-no-gdr": "allpull.explain.rules.nccl_no_gdr:find",
        "nccl-no-p2p": "allpull.explain.rules.nccl_no_p2p:find",
        "latency-bound": "allpull.explain.rules.latency_bound:find",
        "no-overlap": "allpull.explain.rules.no_overlap:find",
        "accumulate-without-no-sync": "allpull.explain.rules.accumulate_without_no_sync:find",
        "broadcast-buffers": "allpull.explain.rules.broadcast_buffers:find",
        "find-unused-parameters": "allpull.explain.rules.find_unused_parameters:find",
        "far-from-gpu": "allpull.explain.rules.far_from_gpu:find",
        "cudnn-benchmark": "allpull.explain.rules.cudnn_benchmark:find",
        "launch-bound": "allpull.explain.rules.launch_bound:find",
        "copy-bound": "allpull.explain.rules.copy_bound:find",
        "between-phases": "allpull.explain.rules.between_phases:find",
        "observation-cost": "allpull.explain.rules.observation_cost:find",
        "awkward-rank-count": "allpull.explain.rules.awkward_rank_count:find",
        "page-cache-only": "allpull.explain.rules.page_cache_only:find",
        "vector-build": "allpull.explain.rules.vector_build:find",
        "mixed-precision": "allpull.explain.rules.mixed_precision:find",
    },
)
"""Slug → its function, in the order of the manual: ranks, input, pauses, network, host, advice."""


def names() -> list[str]:
    """All slugs in the order of the manual; those of other packages come last."""
    return [*RULES.builtin, *(name for name in RULES.names() if name not in RULES.builtin)]
