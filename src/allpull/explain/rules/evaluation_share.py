"""Evaluation takes a large part of the run, although all ranks share it.

What it is
    A test set that is large compared with the training set, or that is evaluated often.

How it is found
    By evaluation in steps in which every rank evaluates: a fifth of the time, or more.

What it costs
    The replay without it.

What to do
    Evaluate less often (`--set train.evaluate_every=…`), or on a part of the test set; or in a separate job that reads
    the checkpoints as they appear: `sbatch --dependency=after:JOB`.

When it is wrong
    Where the score decides what the training does next (early stopping, a schedule), it has to be known in time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allpull.explain.candidate import Candidate, count, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.replay.useful import useful
from allpull.replay.window import Window
from allpull.units import percent

LARGE = 0.2  # of the time: below it, knowing the score is worth its price


def find(facts: Facts) -> list[Candidate]:
    """The job, where evaluation on all ranks takes long."""
    together_s = useful(facts.window).get("evaluation")
    if together_s is None or not together_s.sum() > 0:
        return []
    steps = facts.window.steps.size
    each_s = float(together_s.sum(axis=0).mean()) / steps
    times = np.unique(facts.window.step_of[together_s.max(axis=1) > 0]).size
    return [
        Candidate(
            rule="evaluation-share",
            kind="job",
            title=f"Evaluation by all ranks takes {percent(each_s / facts.step_s)} of the time",
            remedy="evaluate less often (--set train.evaluate_every=…), or in a separate job, from checkpoints: "
            "sbatch --dependency=after:JOB",
            options=("train.evaluate_every",),
            evidence=(
                seconds("evaluation on all ranks, spread over all steps", each_s, facts.span),
                share("of the time", each_s / facts.step_s, facts.span),
                count("steps with an evaluation", int(times), facts.span),
            ),
            without=_without,
            least_share=LARGE,
        )
    ]


def _without(window: Window) -> Window:
    """Without the evaluation that all ranks share; that of single ranks stays."""
    together_s = useful(window).get("evaluation")
    if together_s is None:
        return window
    return replace(window, work={**window.work, "evaluation": window.work["evaluation"] - together_s})
