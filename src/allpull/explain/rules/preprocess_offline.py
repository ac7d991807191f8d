"""All ranks wait for their data, and the loaders already use every CPU: the work on samples has to be done before.

What it is
    Decoding and augmentation cost more CPU than the hosts have. More workers only take turns.

How it is found
    As `input-bound`, where ranks and their workers keep at least nine tenths of the CPUs of every host busy.

What it costs
    The replay without that waiting.

What to do
    Do once what is the same in every epoch: decode, resize and pack the samples beforehand; or have the accelerator
    do it (NVIDIA DALI, `torchvision.transforms.v2` on the device); or ask for more CPUs a rank
    (`sbatch --cpus-per-task=…`).

When it is wrong
    CPU time of ranks that compute on CPUs counts as busy, too: there forward and backward use the cores.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.loader import LEAST, common_input, has_no_cpu_left, without_common_input
from allpull.explain.pricing.candidate import Suspect, seconds
from allpull.explain.rules.input_bound import reading
from allpull.units import show_time


def find(facts: Facts) -> list[Suspect]:
    """The job, where all loaders are behind and no CPU is left for more of them."""
    waited = common_input(facts)
    if waited is None or not has_no_cpu_left(facts):
        return []
    return [
        Suspect(
            rule="preprocess-offline",
            kind="job",
            title=f"All ranks wait {show_time(waited.value)} a step for their data, and the loaders use every CPU",
            remedy="preprocess offline: decode and resize the samples once, before training, or on the accelerator "
            "(torchvision.transforms.v2, DALI); else more CPUs a rank: sbatch --cpus-per-task=…",
            evidence=(
                seconds("what at least half of the ranks wait for their loaders", waited, facts.span),
                *reading(facts),
            ),
            without=partial(
                without_common_input, first=facts.first, behind=tuple(one.rank for one in facts.late.loaders)
            ),
            least_share=LEAST,
        )
    ]
