"""The search: along the parameters of the bottleneck first, then by Optuna, until the budget is spent."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allpull.errors import MissingPart
from allpull.schema.studied import Parameters, Value
from allpull.schema.tuned import BottleneckKind, Ended, Proposer, Trial
from allpull.study.tune.budget import Budget, Spent, taken
from allpull.study.tune.line_search import next_level
from allpull.study.tune.objective import Evaluate, Goal, Measured, hopeless
from allpull.study.tune.space import FALLING, Dimension, configurations, start_of

TIED = 1.02  # times the cost of the best: as good, as far as a run or two can tell
MAX_DRAWS = 20  # of the sampler for a configuration that was not measured yet; then any such one is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A configuration to run next; ``bottleneck`` is that of the best so far, where it led here."""

    parameters: Parameters
    by: Proposer
    bottleneck: BottleneckKind | None = None


class Search:
    """A search over ``space`` that may go on from ``trials`` of an earlier, interrupted one."""

    def __init__(
        self, space: Sequence[Dimension], goal: Goal, evaluate: Evaluate, *, trials: Sequence[Trial] = (), seed: int = 0
    ) -> None:
        self.trials = list(trials)
        self.space, self.goal, self.evaluate = tuple(space), goal, evaluate
        self._kinds: dict[str, list[BottleneckKind]] = {}
        self._seed = seed
        self._sampler = _Sampler(self.space, goal)
        for trial in self.trials:
            self._sampler.add(trial)

    @property
    def best(self) -> Trial | None:
        """The best trial that completed."""
        return min((trial for trial in self.trials if trial.state == "completed"), key=self._cost, default=None)

    @property
    def spent(self) -> Spent:
        """What all trials took, and the runs that a search left behind which was killed."""
        runs = {trial.run for trial in self.trials if trial.run is not None}
        return sum(map(taken, self.trials), self.evaluate.unlisted(runs))

    def run(self, budget: Budget, on_trial: Callable[[Trial], object]) -> Ended:
        """Measure configurations until ``budget`` or the space is spent; what ended it, as in `TuneResult.ended`."""
        while True:
            if self.trials and self.best is None and self.trials[0].state != "completed":
                return "start failed"
            best, spent = self.best, self.spent
            if (limit := budget.exceeded(self.trials, best, spent)) is not None:
                return limit
            proposal = self.propose()
            if proposal is None:
                return "space"
            measured = self.evaluate.run(
                proposal.parameters,
                len(self.trials),
                hopeless(self.goal, None if best is None else best.value),
                budget.left(self.trials, best, spent),
            )
            trial = _trial(len(self.trials), proposal, measured)
            self.trials.append(trial)
            self._sampler.add(trial)
            on_trial(trial)

    def propose(self) -> Proposal | None:
        """The next configuration; None where all were measured.

        It follows from the trials and the seed alone: a search that was killed goes on with the same one.
        """
        if not self.trials:
            return Proposal(parameters=start_of(self.space), by="start")
        size = configurations(self.space)
        if size is not None and len({_key(trial.parameters) for trial in self.trials}) >= size:
            return None
        return self._along_the_bottleneck() or self._by_optuna()

    def kinds_of(self, trial: Trial) -> list[BottleneckKind]:
        """The bottlenecks of ``trial``, the largest first."""
        if trial.run is None:
            return []
        if trial.run not in self._kinds:
            self._kinds[trial.run] = list(self.evaluate.bottlenecks(trial.run))
        return self._kinds[trial.run]

    def _along_the_bottleneck(self) -> Proposal | None:
        """What relieves the largest bottleneck of the best, or of one as good that has another; then all else.

        Where two things limit a run alike, relieving one of them gains nothing, and shows the other: the search goes on
        from there. Values between those measured come after all beyond them: they gain least. None: no neighbour of the
        best along any parameter can be better.
        """
        best = self.best
        if best is None:
            return None
        tied = [one for one in self.trials if one.state == "completed" and self._cost(one) <= TIED * self._cost(best)]
        relieved = {kind for one in self.space for kind in one.affects}
        bases: dict[BottleneckKind, Trial] = {}  # the best that each bottleneck limits
        for trial in sorted(tied, key=self._cost):
            kind = next((kind for kind in self.kinds_of(trial) if kind in relieved), None)
            if kind is not None:
                bases.setdefault(kind, trial)
        for narrows in (False, True):
            for kind, trial in bases.items():
                proposal = self._neighbour(trial, [kind], narrows=narrows)
                if proposal is not None:
                    return proposal
        return self._neighbour(best, self.kinds_of(best), others=True)

    def _neighbour(
        self, trial: Trial, kinds: Sequence[BottleneckKind], *, narrows: bool = True, others: bool = False
    ) -> Proposal | None:
        """The next level of the first parameter that has one, of those that relieve ``kinds``, the first one first.

        ``narrows``: as in ``next_level``. ``others``: parameters that relieve none of them come last.
        """
        costs = {_key(one.parameters): self._cost(one) for one in self.trials}
        upwards = None  # more of what the machine is short of: only where nothing else is left
        for one in sorted(self.space, key=lambda one: _rank(one, kinds)):
            relieved = next((kind for kind in kinds if kind in one.affects), None)
            if relieved is None and not others:
                continue
            now = trial.parameters[one.name]
            levels = one.levels if now in one.levels else _with(one, now)
            measured = {
                index: cost
                for index, level in enumerate(levels)
                if (cost := costs.get(_key({**trial.parameters, one.name: level}))) is not None
            }
            rising = relieved not in FALLING
            index = next_level(measured, len(levels), ordered=one.ordered, rising=rising, narrows=narrows)
            if index is None:
                continue
            proposal = Proposal(
                parameters={**trial.parameters, one.name: levels[index]}, by="bottleneck", bottleneck=relieved
            )
            if relieved not in FALLING or not one.ordered or index < levels.index(now):
                return proposal
            upwards = upwards or proposal
        return upwards

    def _by_optuna(self) -> Proposal | None:
        """A configuration that Optuna's sampler expects to be good, and that was not measured."""
        known = {_key(trial.parameters) for trial in self.trials}
        seed = self._seed + len(self.trials)
        self._sampler.seed(seed)
        for _ in range(MAX_DRAWS):
            parameters = self._sampler.draw()
            if _key(parameters) not in known:
                return Proposal(parameters=parameters, by="optuna")
        free = [one for one in _grid(self.space) if _key(one) not in known]
        return Proposal(parameters=random.Random(seed).choice(free), by="optuna") if free else None  # noqa: S311  not for secrets

    def _cost(self, trial: Trial) -> float:
        return math.inf if trial.value is None else self.goal.cost(trial.value.value)


class _Sampler:
    """Optuna's tree-structured Parzen estimator over the space, which it sees as indices of lists, and as ranges."""

    def __init__(self, space: Sequence[Dimension], goal: Goal) -> None:
        self._optuna = optuna_or_hint()
        self._space, self._goal = space, goal
        self._study = self._optuna.create_study(direction="minimize")
        self.seed(0)
        self._distributions = {one.name: self._distribution(one) for one in space}

    def seed(self, seed: int) -> None:
        """Begin the sampler's random numbers anew."""
        self._study.sampler = self._optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=5)

    def add(self, trial: Trial) -> None:
        """Let the sampler know of ``trial``; one that failed counts as the worst."""
        optuna, state = self._optuna, self._optuna.trial.TrialState
        cost = None if trial.value is None else math.log(self._goal.cost(trial.value.value))
        whole = trial.state == "completed" and cost is not None
        self._study.add_trial(
            optuna.trial.create_trial(
                state=state.COMPLETE if whole else state.PRUNED,
                value=cost if whole else None,
                params={one.name: _plain(one, trial.parameters[one.name]) for one in self._space},
                distributions=self._distributions,
                intermediate_values={} if cost is None else {0: cost},
            )
        )

    def draw(self) -> Parameters:
        """A configuration."""
        trial = self._study.ask(self._distributions)
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # added again once it is measured
        return {one.name: _value(one, trial.params[one.name]) for one in self._space}

    def _distribution(self, one: Dimension) -> Any:
        distributions = self._optuna.distributions
        if one.range is not None:
            kind = distributions.IntDistribution if one.range.whole else distributions.FloatDistribution
            return kind(one.range.low, one.range.high, log=one.range.log)
        if one.ordered:
            return distributions.IntDistribution(0, len(one.levels) - 1)
        return distributions.CategoricalDistribution(list(range(len(one.levels))))


def optuna_or_hint() -> Any:
    """The package Optuna.

    Raises:
        MissingPart: it is not installed.
    """
    try:
        import optuna  # noqa: PLC0415  an optional part
    except ImportError as error:
        raise MissingPart(
            f"allpull tune needs the package optuna, which cannot be imported: {error}",
            hint="pip install 'allpull[tune]'",
        ) from None
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna


def _plain(one: Dimension, value: Value) -> Value:
    return value if one.range is not None else one.levels.index(value)


def _value(one: Dimension, drawn: Any) -> Value:
    return drawn if one.range is not None else one.levels[drawn]  # type: ignore[no-any-return]  # optuna has no types


def _trial(number: int, proposal: Proposal, measured: Measured) -> Trial:
    return Trial(
        number=number,
        parameters=proposal.parameters,
        state=measured.state,
        value=measured.value,
        proposed_by=proposal.by,
        bottleneck=proposal.bottleneck,
        seconds=measured.seconds,
        rank_s=measured.rank_s,
        run=measured.run,
        reason=measured.reason,
    )


def _rank(one: Dimension, kinds: Sequence[BottleneckKind]) -> int:
    """The place of the largest bottleneck that a parameter relieves."""
    return min((kinds.index(kind) for kind in one.affects if kind in kinds), default=len(kinds))


def _with(one: Dimension, value: Value) -> tuple[Value, ...]:
    """The levels of a range with ``value``, which Optuna drew between them."""
    return tuple(sorted({*one.levels, value}, key=float))


def _key(parameters: Mapping[str, Value]) -> tuple[tuple[str, str, Value], ...]:
    return tuple(sorted((name, type(value).__name__, value) for name, value in parameters.items()))


def _grid(space: Sequence[Dimension]) -> Iterator[Parameters]:
    """All configurations of the levels."""
    if not space:
        yield {}
        return
    for rest in _grid(space[1:]):
        yield from ({space[0].name: level, **rest} for level in space[0].levels)
