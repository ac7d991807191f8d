"""Evaluation takes a large part of the run, although all ranks share it.

What it is
    A test set that is large compared with the training set, or that is evaluated often.

How it is found
    By evaluation in steps in which every rank evaluates, of the lower median rank: a fifth of the time, or more. What
    one rank takes longer than the others is `uneven-evaluation`. Rollouts of reinforcement learning are named where
    collecting them takes half of the time, or more.

What it costs
    The replay without it. In a program that passes over no loader there is no price: forward passes without gradients
    may be rollouts, from which reinforcement learning learns later. They are recorded as such where an environment of
    gymnasium, gym or Stable-Baselines3 works in between, or a policy draws its actions from `torch.distributions`; the
    records cannot tell others from evaluation. Rollouts are necessary, so that they have no price. Of evaluation in
    most steps the price is an upper bound: what it computes may be learned from, as the answers of a teacher or labels
    that the network gives itself.

What to do
    Evaluate less often (`--set train.evaluate_every=…`), or on a part of the test set; or in a separate job that reads
    the checkpoints as they appear: `sbatch --dependency=after:JOB`. Rollouts: faster environments, or several at once
    in processes of their own; and see what callbacks, loggers and buffers do in between.

When it is wrong
    Where the score decides what the training does next (early stopping, a schedule), it has to be known in time.
    Reinforcement learning that also reads batches from a `DataLoader` has epochs, and its rollouts are then priced as
    evaluation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allpull.analyse.steps.steady import SELDOM
from allpull.explain.candidate import Candidate, as_recorded, count, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.remedy import program, sentence, within
from allpull.explain.remedy_text import evaluation_job, option_or
from allpull.replay.useful import evaluated_by_all
from allpull.replay.whatif.work import lower_median
from allpull.replay.window import Window
from allpull.schema.explained import Evidence
from allpull.schema.steps import ENVIRONMENT
from allpull.units import percent

LARGE = 0.2  # of the time: below it, knowing the score is worth its price
MOST = 0.5  # of the time: below it, most is spent on learning from rollouts
AGAINST_ENVIRONMENTS = sentence(
    "make environments faster, or step several at once in processes of their own (",
    program("gymnasium.vector.AsyncVectorEnv"),
    ", ",
    program("SubprocVecEnv"),
    ")",
)
AGAINST_ROLLOUTS = sentence(
    "see what happens around the environments: callbacks, loggers and buffers count as part of it; ask the policy for "
    "the actions of more environments at once"
)


def find(facts: Facts) -> list[Candidate]:
    """The job, where evaluation on all ranks takes long, or collecting rollouts."""
    return [*_rollouts(facts), *_evaluation(facts)]


def _evaluation(facts: Facts) -> list[Candidate]:
    """Evaluation on all ranks."""
    together = evaluated_by_all(facts.window)
    if not together.any():
        return []
    each_s = float(lower_median(facts.window.per_step("evaluation"))[together].sum()) / together.size
    spent_share = each_s / facts.step_s
    evidence = (
        seconds("evaluation on all ranks, spread over all steps", each_s, facts.span),
        share("of the time", spent_share, facts.span),
        count("steps with an evaluation", int(together.sum()), facts.span),
    )
    if not facts.has_epochs:
        return [_evaluation_or_rollouts(spent_share, evidence)] if spent_share >= LARGE else []
    by_all = " by all ranks" if facts.window.ranks > 1 else ""
    is_usual = together.sum() > SELDOM * together.size
    often = " in most steps" if is_usual else ""
    learned = "if the program learns from nothing that it computes there, " if is_usual else ""
    less = option_or(facts.start, "train.evaluate_every", 2 * facts.start.evaluate_every)
    return [
        Candidate(
            rule="evaluation-share",
            kind="job",
            title=f"Evaluation{by_all}{often} takes {percent(spent_share)} of the time",
            remedy=sentence(
                f"{learned}evaluate less often", within(" (", less, ")"), ", or ", evaluation_job(facts.start)
            ),
            evidence=evidence,
            without=_without,
            bounds=(as_recorded, _without) if is_usual else None,
            least_share=LARGE,
        )
    ]


def _evaluation_or_rollouts(spent_share: float, evidence: tuple[Evidence, ...]) -> Candidate:
    """Forward passes without gradients in a program without epochs, which may be what it learns from."""
    return Candidate(
        rule="evaluation-share",
        kind="advice",
        title=f"Evaluation, or collecting rollouts, takes {percent(spent_share)} of the time",
        remedy=sentence(
            "if the program learns from nothing that it computes there, evaluate less often, or in a separate job; "
            "rollouts become faster by faster environments, or more of them per batch"
        ),
        evidence=evidence,
    )


def _rollouts(facts: Facts) -> list[Candidate]:
    """Rollouts of reinforcement learning, which are necessary: how much of them is not known."""
    collected_s, environments_s = sum(facts.rollouts_s.values()), facts.rollouts_s.get(ENVIRONMENT, 0.0)
    if not collected_s or collected_s < MOST * facts.step_s:
        return []
    return [
        Candidate(
            rule="evaluation-share",
            kind="advice",
            title=f"Collecting rollouts takes {percent(collected_s / facts.step_s)} of the time",
            remedy=AGAINST_ENVIRONMENTS if environments_s >= MOST * collected_s else AGAINST_ROLLOUTS,
            evidence=(
                seconds("collecting rollouts, environments included, spread over all steps", collected_s, facts.span),
                seconds("of that, in environments", environments_s, facts.span),
            ),
        )
    ]


def _without(window: Window) -> Window:
    """Without the evaluation that all ranks have in common; what some of them take longer stays."""
    together = evaluated_by_all(window)[window.step_of]
    common_s = np.where(together, lower_median(window.work["evaluation"]), 0.0)[:, None]
    return replace(window, work={**window.work, "evaluation": np.maximum(window.work["evaluation"] - common_s, 0.0)})
