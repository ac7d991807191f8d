"""All ranks wait for their data while the loaders use every CPU: preprocess the samples beforehand.

What it is
    Decoding and augmentation need more CPU time than the hosts have. More workers only take turns.

How it is found
    As `input-bound`, where ranks and their workers keep at least nine tenths of the CPUs of every host busy.

What it costs
    The replay without that waiting.

What to do
    Do the work that is the same in every epoch once: decode, resize and pack the samples beforehand; or do it on the
    accelerator (NVIDIA DALI, `torchvision.transforms.v2` on the device); or request more CPUs per rank
    (`sbatch --cpus-per-task=…`).

When it is wrong
    CPU time of ranks that compute on CPUs counts as busy, too: there forward and backward use the cores.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.loader import behind_others, common_input, has_no_cpu_left, without_common_input
from allpull.explain.evidence.loading.deliveries import LEAST
from allpull.explain.remedy import sentence, within
from allpull.explain.remedy_text import cpus_for_workers
from allpull.explain.rules.input_bound import loader_evidence, waiting, waits


def find(facts: Facts) -> list[Candidate]:
    """The job, where all loaders are behind and no CPU is free for more workers."""
    waited = common_input(facts)
    if waited is None or not has_no_cpu_left(facts):
        return []
    cpus = cpus_for_workers(facts.start, facts.machine)
    return [
        Candidate(
            rule="preprocess-offline",
            kind="job",
            title=f"{waits(facts, waited)}, and the loaders use every CPU",
            remedy=sentence(
                "preprocess offline: decode and resize the samples once, before training, or on the accelerator "
                "(torchvision.transforms.v2, DALI)",
                within("; else more CPUs per rank: ", cpus),
            ),
            evidence=(
                waiting(facts, waited),
                *loader_evidence(facts),
            ),
            without=partial(without_common_input, first=facts.first, behind=behind_others(facts)),
            least_share=LEAST,
        )
    ]
