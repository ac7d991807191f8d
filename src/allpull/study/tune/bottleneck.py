"""The bottleneck of a run: which kind of loss its explanation finds largest."""

from __future__ import annotations

from collections.abc import Mapping

from allpull.schema.explained import ExplainResult
from allpull.schema.tuned import BottleneckKind

RULES: Mapping[str, BottleneckKind] = {
    "input-bound": "input",
    "preprocess-offline": "input",
    "first-batch-stall": "input",
    "slow-loader-rank": "input",
    "network-bound": "network",
    "latency-bound": "network",
    "no-overlap": "network",
    "slow-link": "network",
    "shared-uplink": "network",
    "accumulate-without-no-sync": "network",
    "broadcast-buffers": "network",
    "launch-bound": "launch",
    "between-phases": "launch",
    "cpu-contention": "cpu",
    "vector-build": "compute",
    "copy-bound": "compute",
    "mixed-precision": "compute",
}
"""Rule → the kind of loss that it finds, of those that a parameter can relieve."""

FACTORS: Mapping[str, BottleneckKind] = {"transfer": "network", "input": "input", "orchestration": "launch"}
"""Factor of the efficiency tree → its kind."""

PHASES: Mapping[str, BottleneckKind] = {"transfer": "network", "input": "input", "copy": "compute", "other": "launch"}
"""Phase → its kind, where there is no tree."""

WORK = ("forward", "backward", "optimizer")
RECOVERABLE = 0.5  # of the time that is computed: what lower precision or compilation gains at best, as a rule


def bottlenecks(explained: ExplainResult) -> list[BottleneckKind]:
    """The kinds of loss that show in a run, the largest first; computation counts with ``RECOVERABLE`` of its time."""
    shares: dict[BottleneckKind, float] = {}

    def add(kind: BottleneckKind, share: float) -> None:
        shares[kind] = max(share, shares.get(kind, 0.0))

    for finding in explained.findings:
        if finding.rule in RULES and finding.loss_share is not None:
            add(RULES[finding.rule], finding.loss_share)
    if explained.efficiency is not None:
        for factor, gain in explained.gains.items():
            if factor in FACTORS and gain > 0:
                add(FACTORS[factor], 1 - 1 / gain)
    mean = {name: time_s for name, time_s in explained.phases.mean.items() if time_s is not None}
    total_s = sum(mean.values())
    if total_s > 0:
        if explained.efficiency is None:
            for phase, kind in PHASES.items():
                add(kind, mean.get(phase, 0.0) / total_s)
        add("compute", RECOVERABLE * sum(mean.get(phase, 0.0) for phase in WORK) / total_s)
    return sorted((kind for kind, share in shares.items() if share > 0), key=lambda kind: -shares[kind])
