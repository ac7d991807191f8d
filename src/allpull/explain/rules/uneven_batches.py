"""Ranks have equally many samples and unequal work: batches differ in length, and the longest sets the pace.

What it is
    Texts are padded to the longest of their batch, images or graphs have many sizes. Ranks with as many samples then
    compute on different numbers of elements, another one has the most in each step, and all wait for it. So they do
    where batches have different numbers of samples, in another order on each rank.

How it is found
    By the size of the batches of each rank, in elements, or in samples where all of these have one size, and by its
    computing time: within a step, ranks with larger batches compute longer, and that explains at least half of the
    variance between ranks. Where batches vary and times do not follow them, the rule is silent.

What it costs
    The replay in which the elements of a step, or its samples, are spread evenly over its ranks: those with less than
    the mean compute longer, those with more shorter. Their number stays the same, so the gain is one in elements or
    samples per second.

What to do
    Batches of a fixed number of tokens in place of a fixed number of samples; or sort samples into groups by length and
    let all ranks take their batches of a step from one group (`group_by_length=True` in the Trainer of Transformers, a
    batch sampler of your own). Packing texts into rows of one length leaves no padding at all. Where batches differ in
    the number of samples, a batch sampler that gives all ranks batches of one size in each step.

When it is wrong
    Grouping by length changes the order of samples: shuffle groups and within groups. The cost of attention grows
    faster than the number of elements, and then this price is a little low. Ranks that share the CPUs of one machine
    exchange more slowly once they arrive together: two ranks on two CPUs gained 1.05 where 1.11 was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.batch_work import batch_work
from allpull.explain.evidence.late.outliers import mean_interval
from allpull.explain.remedy import sentence
from allpull.replay.whatif.work import shortened_by_step
from allpull.replay.window import Window
from allpull.units import percent, show_time

ALIKE_SAMPLES = sentence("a batch sampler that gives all ranks equally many samples in a step, if not in all steps")
ALIKE_ELEMENTS = sentence(
    "batches of a fixed number of tokens, or batches of similar length on all ranks of a step "
    "(group_by_length=True, a batch sampler that sorts by length); packing leaves no padding"
)


def find(facts: Facts) -> list[Candidate]:
    """The job, where larger batches make ranks late."""
    window = facts.window
    work = batch_work(window, facts.machine)
    if work is None:
        return []
    late_s = work.excess_s[~window.odd].max(axis=1)
    sizes = work.sizes[np.isfinite(work.sizes).all(axis=1)]
    largest = float((sizes.max(axis=1) / sizes.mean(axis=1)).mean())
    of_samples = window.elements is None
    unit = "samples" if of_samples else "elements"
    return [
        Candidate(
            rule="uneven-batches",
            kind="rest",
            title=f"Batches differ in size: the largest of a step has {percent(largest - 1)} more {unit} than the "
            f"mean, which takes its rank {show_time(float(late_s.mean()))} longer",
            remedy=ALIKE_SAMPLES if of_samples else ALIKE_ELEMENTS,
            evidence=(
                seconds("time of the largest batch of a step beyond the mean one", mean_interval(late_s), facts.span),
                share("largest batch of a step divided by the mean one", largest, "sizes of batches"),
                share("variance of computing times between ranks that sizes explain", work.share, facts.span),
            ),
            without=partial(evenly_sized, excess_s=work.by_phase),
        )
    ]


def evenly_sized(window: Window, excess_s: Mapping[str, Floats]) -> Window:
    """Each phase of a rank takes as long as on the mean batch of the step, on which it takes ``excess_s`` less.

    ``excess_s``: phase → (steps, ranks). What else makes a rank deviate grows with its work, and shrinks with it.
    """
    kept = {}
    for name, more_s in excess_s.items():
        usual_s = window.per_step(name).mean(axis=1, keepdims=True)
        sized_s = usual_s + more_s
        kept[name] = np.divide(usual_s, sized_s, out=np.ones_like(sized_s), where=sized_s > 0)
    return shortened_by_step(window, kept)
