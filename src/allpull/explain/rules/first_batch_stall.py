"""The first batch of each epoch is late: loader workers are restarted, and their queues are empty.

What it is
    By default `DataLoader` ends its workers with the epoch. Starting them, opening files and filling the queue takes
    seconds, in which nothing is trained. Short epochs pay it often. So they do where a sampler or a data set takes its
    time to begin: it sorts, shuffles or reads a list of files.

How it is found
    By the time in `input` of steps tagged as the first of an epoch, compared with the median of the other steps. Ranks
    are named where others do not wait half as long.

What it costs
    The replay in which first batches are as fast as others; waiting in other steps, such as those after an evaluation,
    stays. Workers that are kept begin the first batch when the epoch does: where they timed what they made, that long a
    rank still waits for it.

What to do
    `DataLoader(persistent_workers=True)`, and where epochs are short a sampler that continues across them. Where no
    workers of the loader are known, look first at what its sampler and its data set do before the first batch.

When it is wrong
    Where the data set itself is rebuilt for each epoch, a shuffle buffer is filled, or the sampler takes its time to
    begin, persistent workers do not help.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, count, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import Action, program, sentence, shell, starter
from allpull.replay.whatif.work import without_first_batches
from allpull.replay.window import Bools
from allpull.schema.gap import named_ranks
from allpull.units import show_time

KEEP_AHEAD = sentence("prepare more batches before they are needed: ", starter("--set data.ahead=8", "data.ahead"))

KEPT = sentence(
    "the workers are kept from one epoch to the next already, but begin each with an empty queue: let one pass go on "
    "across epochs, with a sampler that repeats the data set"
)
NO_WORKERS = sentence(
    "see what the loader does before its first batch, such as __iter__ of its sampler or of its data set (",
    shell("py-spy dump --pid PID"),
    " names the line), and do it once, or ahead; if it starts workers, keep them: ",
)
OF_SLOWEST = 0.5  # of the longest wait of a rank for first batches


def find(facts: Facts) -> list[Candidate]:
    """The job, where the first batches of epochs take longer than others."""
    first = facts.first
    if not first.any() or first.all():
        return []
    waits_s = facts.window.per_step("input")
    slowest = waits_s.max(axis=1)
    more_s = np.maximum(slowest[first] - float(np.median(slowest[~first])), 0.0)
    per_step_s = float(more_s.sum()) / first.size
    if per_step_s <= 0:
        return []
    waiting = _waiting(waits_s, first)
    return [
        Candidate(
            rule="first-batch-stall",
            kind="job",
            title=f"The first batch of an epoch takes {show_time(float(more_s.mean()))} longer than others"
            + (f", on {named_ranks(waiting)}" if waiting else ""),
            remedy=KEEP_AHEAD if facts.start.starter == "train" else _keep_workers(facts),
            evidence=(
                seconds("cost of first batches, spread over all steps", per_step_s, facts.span),
                seconds("additional wait of the slowest rank for a first batch", float(more_s.mean()), facts.span),
                count("epochs that began", int(first.sum()), facts.span),
            ),
            without=partial(without_first_batches, first=first, least_s=facts.batch_s),
            ranks=waiting,
        )
    ]


def _waiting(waits_s: Floats, first: Bools) -> tuple[int, ...]:
    """The ranks that wait for ``first`` batches, (steps,), where others wait less than half as long; empty: all do.

    ``waits_s``: (steps, ranks).
    """
    more_s = np.median(waits_s[first], axis=0) - np.median(waits_s[~first], axis=0)
    waiting = np.flatnonzero(more_s >= OF_SLOWEST * more_s.max())
    return () if waiting.size == more_s.size else tuple(waiting.tolist())


def _keep_workers(facts: Facts) -> Action:
    """How to keep workers from one epoch to the next; if they are kept, how to keep their queue filled, too."""
    if facts.keeps_workers:
        return KEPT
    workers = facts.workers or max(facts.worker_counts, default=0)
    kept = program(f"DataLoader(num_workers={workers or 1}, persistent_workers=True)")
    if workers:
        return sentence("keep the workers of the loader: ", kept)
    return sentence(NO_WORKERS, kept, ", with as many as now")
