"""DDP looks for unused parameters in each step, and there are none.

What it is
    With `find_unused_parameters=True` DDP walks through the graph of each forward pass to find parameters that get no
    gradient, exchanges which these are, and keeps the buckets in the order in which layers were made. A network that
    uses all its parameters pays for that in each step, and needs none of it.

How it is found
    By the settings of DDP, and by the unused parameters that its own logger counts: none in at least two backward
    passes, on any rank. The logger shows the first ten passes and each hundredth after them.

What it costs
    The walk is part of forward and is not timed, so it is advice without a price: more where a network has many small
    operations and little computation.

What to do
    `DDP(model, find_unused_parameters=False)`, which is the default; in the Trainer of Transformers
    `TrainingArguments(ddp_find_unused_parameters=False)`, in Lightning `strategy="ddp"`. Then
    `allpull compare BEFORE --with AFTER`.

When it is wrong
    Where parameters are unused in rare steps only, such as a branch that depends on the data: then torch raises an
    error in the first step that leaves one out. Networks that always leave out the same ones can set
    `static_graph=True`.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import sentence
from allpull.explain.remedy_text import MEASURE_IT, keyword_of_ddp

LEAST_PASSES = 2  # one may be a warm-up


def find(facts: Facts) -> list[Candidate]:
    """Advice, where no network has unused parameters, and one looks for them."""
    looking = [one for one in facts.networks if one.unused_bytes is not None]
    if not looking or any(one.unused_bytes or one.checked_passes < LEAST_PASSES for one in looking):
        return []
    passes = min(one.checked_passes for one in looking)
    return [
        Candidate(
            rule="find-unused-parameters",
            kind="advice",
            title="DDP looks for unused parameters in each step, and found none in any of the "
            f"{passes:,} passes that its logger shows",
            remedy=sentence(keyword_of_ddp("find_unused_parameters=False"), MEASURE_IT),
            evidence=(count("backward passes without an unused parameter", passes, "logger of DDP"),),
        )
    ]
