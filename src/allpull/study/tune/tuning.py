"""Tune a study: search within the budget, confirm, and the result; a tuning that was killed goes on from its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from allpull.schema.base import tag
from allpull.schema.studied import Parameters
from allpull.schema.tuned import Confirmation, Ended, Trial, TunedParameter, TuneResult
from allpull.study.tune.budget import Budget, Spent, taken
from allpull.study.tune.confirm import confirm, missing_pairs
from allpull.study.tune.objective import Evaluate
from allpull.study.tune.search import Search
from allpull.study.tune.settings import TuneSettings
from allpull.study.tune.space import Dimension, configurations, start_of
from allpull.study.tune.trial_log import append_trial, read_trials
from allpull.units import counted, percent, show_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is tuned, and where its trials and runs are kept; ``command`` gives what a user would type."""

    name: str
    title: str
    directory: Path
    command: Callable[[Parameters], list[str]]
    toml: Callable[[Parameters], str]


def tune(
    subject: Subject,
    settings: TuneSettings,
    space: Sequence[Dimension],
    evaluate: Evaluate,
    *,
    seed: int = 0,
    on_trial: Callable[[Trial, Trial | None], object] = lambda _trial, _best: None,
) -> TuneResult:
    """Search ``space`` within the budget of ``settings``, and confirm the best configuration against the first.

    ``on_trial`` gets each trial as it ends, with the best so far. Trials that are in the directory are not run again.

    Raises:
        MissingPart: Optuna is not installed.
    """
    search = Search(space, settings.goal, evaluate, trials=read_trials(subject.directory), seed=seed)

    def ended(trial: Trial) -> None:
        append_trial(subject.directory, trial)
        on_trial(trial, search.best)

    budget = Budget(seconds=settings.seconds, trials=settings.trials, rank_s=settings.rank_s, confirm=settings.confirm)
    end = search.run(budget, ended)
    confirmation = _confirmed(search, budget)
    return _result(subject, search, end, confirmation, wanted=settings.confirm)


def _confirmed(search: Search, budget: Budget) -> Confirmation | None:
    """As many fresh runs of start and best as ``budget`` wants and has room for; None: nothing is to be confirmed."""
    best, start = search.best, start_of(search.space)
    if best is None or best.parameters == start:
        return None
    missing = missing_pairs(search.evaluate, search.trials[0], best, budget.confirm)
    pairs = budget.pairs(missing, search.spent)
    return confirm(search.evaluate, search.goal, start, best.parameters, pairs) if pairs else None


def _result(
    subject: Subject, search: Search, end: Ended, confirmation: Confirmation | None, *, wanted: int
) -> TuneResult:
    """The result of a search that ended with ``end``; ``wanted`` runs of each side were to confirm it."""
    goal, best, space = search.goal, search.best, search.space
    first = search.trials[0] if search.trials else None
    in_search = None
    if best is not None and best.value is not None and first is not None and first.value is not None:
        in_search = goal.gain(first.value.value, best.value.value)
    kinds = search.kinds_of(first) if first is not None else []
    interrupted = search.evaluate.unlisted(
        {*(trial.run for trial in search.trials if trial.run), *(_runs(confirmation) if confirmation else ())}
    )
    total = sum(map(taken, search.trials), interrupted)
    total += Spent(seconds=confirmation.seconds, rank_s=confirmation.rank_s) if confirmation else Spent()
    return TuneResult(
        schema=tag("tune"),
        name=subject.name,
        title=subject.title,
        directory=str(subject.directory),
        objective=goal.name,
        unit=goal.unit,
        better=goal.better,
        space=[_described(one) for one in space],
        configurations=configurations(space),
        trials=search.trials,
        start=start_of(space),
        bottleneck=kinds[0] if kinds else None,
        best=None if best is None else best.parameters,
        gain_in_search=in_search,
        confirmation=confirmation,
        seconds=total.seconds,
        rank_s=total.rank_s,
        ended=end,
        best_toml=None if best is None else subject.toml(best.parameters),
        command=None if best is None else subject.command(best.parameters),
        notes=[
            *_notes(search, confirmation),
            *_notes_on_budget(search, confirmation, wanted=wanted, interrupted_s=interrupted.seconds),
        ],
    )


def _runs(confirmation: Confirmation) -> list[str]:
    return [*confirmation.start_runs, *confirmation.best_runs]


def _described(one: Dimension) -> TunedParameter:
    if one.range is None:
        return TunedParameter(name=one.name, values=list(one.levels), affects=list(one.affects))
    return TunedParameter(
        name=one.name,
        values=None,
        low=one.range.low,
        high=one.range.high,
        log=one.range.log,
        affects=list(one.affects),
    )


def _notes(search: Search, confirmation: Confirmation | None) -> list[str]:
    """What is left out, and what the numbers do not show."""
    notes, space = list[str](), search.space
    size, trials, best = configurations(space), search.trials, search.best
    if size is not None and size > len(trials):
        notes.append(f"{len(trials)} of {counted(size, 'configuration')} were run; another one may be better")
    stopped = sum(trial.state == "stopped" for trial in trials)
    if stopped:
        notes.append(f"{counted(stopped, 'trial')} ended early; the value of such a trial is that of its live records")
    if best is not None and best.parameters == start_of(space) and len(trials) > 1:
        notes.append("no configuration was better than the first: there is nothing to confirm")
    edges = [
        one.name
        for one in space
        if best is not None
        and one.ordered
        and len(one.levels) > 1
        and best.parameters[one.name] in (one.levels[0], one.levels[-1])
    ]
    if edges:
        notes.append(f"the best is at the end of the values of {', '.join(edges)}: values beyond it may be better")
    gain = None if confirmation is None else confirmation.gain
    if gain is not None and (gain.low is None or gain.low <= 1):
        bound = "is not known" if gain.low is None else f"includes {percent(max(0.0, 1 - gain.low))} slower"
        notes.append(f"the gain is not shown: its 95 % interval {bound}")
    if gain is None and confirmation is not None:
        notes.append("the confirmation has no gain: all runs of one side failed")
    return notes


def _notes_on_budget(
    search: Search, confirmation: Confirmation | None, *, wanted: int, interrupted_s: float
) -> Iterator[str]:
    """What the budget did not leave room for, and what interruptions took of it."""
    made = 0 if confirmation is None else len(confirmation.start)
    is_better = search.best is not None and search.best.parameters != start_of(search.space)
    if is_better and made < wanted:
        room = f"{made} of {counted(wanted, 'pair')}" if made else "none"
        yield f"the budget had room for {room} of the fresh runs that confirm the gain: a larger one adds the others"
    if interrupted_s:
        yield f"{show_time(interrupted_s)} went into runs that were interrupted, and counts towards the budget"
