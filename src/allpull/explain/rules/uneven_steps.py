"""Ranks make different numbers of steps, and those that are done wait for the others.

What it is
    Shards of unequal length, an iterable data set, files that are not split evenly: one rank has more batches than
    another. `Join` lets such a job end well; the ranks that are done answer the collectives of the others and train
    nothing.

How it is found
    By the steps of each rank from its first reduction of gradients to its last: the rank with the most has 2 % more
    than the mean, and two steps more at least. A step whose reduction was not recorded (of layers that did not run) is
    a step. All ranks have to be recorded to their end.

What it costs
    What the others wait is in no step of theirs, so nothing is replayed. If all steps take alike, training takes the
    most steps of a rank; with equal numbers it would take the mean. Their ratio is the evidence, and the speed-up that
    equal numbers give at most.

What to do
    Split samples, not files: `DistributedSampler(dataset)`, more shards than ranks with equally many samples, or an
    iterable data set that gives every n-th sample to each of n ranks.

When it is wrong
    Where ranks are meant to train for different lengths, as in local SGD by time, or where the additional steps of a
    rank are a training of its own after the common one.
"""

from __future__ import annotations

from allpull.explain.candidate import Candidate, count, times
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence
from allpull.units import percent

SOURCE = "the records of all ranks, from begin to end"


def find(facts: Facts) -> list[Candidate]:
    """The job, where ranks reduced gradients in different numbers of steps."""
    steps = facts.reducing_steps
    if steps is None or not facts.has_uneven_steps:
        return []
    most, mean = int(steps.max()), float(steps.mean())
    rank = int(steps.argmax())
    return [
        Candidate(
            rule="uneven-steps",
            kind="advice",
            title=f"{facts.on(rank)} makes {most:,} steps, {percent(most / mean - 1)} more than the mean rank: ranks "
            "that are done wait",
            remedy=sentence(
                "give all ranks equally many batches: ",
                program("DistributedSampler(dataset)"),
                ", shards of equal length, or every n-th sample of an iterable data set to each of n ranks",
            ),
            evidence=(
                times(
                    "the most steps of a rank divided by their mean: what equal numbers gain at most",
                    most / mean,
                    SOURCE,
                ),
                count("steps of the rank with the fewest", int(steps.min()), SOURCE),
                count("steps of the rank with the most", most, SOURCE),
            ),
            ranks=(rank,),
        )
    ]
