"""The table ``[tune]`` of a study file: objective, budget, space, start; or every fault in it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from allpull.config.typed import build, find_faults, show
from allpull.errors import BadInput, ConfigError
from allpull.schema.option import option
from allpull.schema.studied import Parameters
from allpull.schema.tuned import BottleneckKind
from allpull.study.tune.objective import GOALS, Goal
from allpull.study.tune.space import RANGE_KEYS, Dimension, dimension, faults
from allpull.units import parse_time_s

TABLES = ("space", "start", "fixed", "affects")
KINDS: tuple[BottleneckKind, ...] = ("input", "network", "launch", "compute", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneTable:
    """``[tune]`` apart from its tables."""

    objective: Literal["epoch_s", "throughput", "time_to_accuracy_s"] = option("throughput", "what is tuned for")
    accuracy: float = option(0.0, "with objective = time_to_accuracy_s: the top-1 to reach, a fraction", ge=0, le=1)
    budget: str = option("", "longest time of all runs, confirmation included, such as '1 h'; empty: no limit")
    trials: int = option(0, "most configurations that the search runs; 0: no limit", ge=0)
    rank_hours: float = option(0.0, "ranks × hours of all runs, confirmation included; 0: no limit", ge=0)
    confirm: int = option(
        3, "fresh runs of start and of best, in alternation; 3 is the fewest that show a spread", ge=0, le=100
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """``[tune]``, checked. ``space`` has the values as given; ``dimensions`` makes them into dimensions.

    ``accuracy`` is the top-1 to reach, a fraction; ``seconds``, ``trials`` and ``rank_s`` are the budget, None: no
    limit. ``confirm`` is the number of runs of start and of best that confirm the gain. ``fixed`` are parameters of all
    runs.
    """

    goal: Goal
    accuracy: float | None
    seconds: float | None
    trials: int | None
    rank_s: float | None
    confirm: int
    space: Mapping[str, Any]
    start: Parameters
    fixed: Parameters
    affects: Mapping[str, tuple[BottleneckKind, ...]]

    def dimensions(self, defaults: Parameters) -> tuple[Dimension, ...]:
        """The search space; ``defaults`` are what the run has where nothing is set."""
        return tuple(
            dimension(name, given, default=self.start.get(name, defaults.get(name)), affects=self.affects.get(name))
            for name, given in self.space.items()
        )


def read_settings(table: Mapping[str, Any] | None, source: str) -> TuneSettings:
    """The settings in ``table``, ``[tune]`` of the study file ``source``.

    Raises:
        BadInput: there is no such table.
        ConfigError: with a line for every fault.
    """
    if not table:
        raise BadInput(f"{source} has no table [tune]", hint="add one with [tune.space]: docs/how-to/tune.md")
    plain = {name: value for name, value in table.items() if name not in TABLES}
    found = [f"tune.{line}" for line in find_faults(TuneTable, plain)]
    found += [
        f"tune.{name}: expected a table; found {show(table[name])}"
        for name in TABLES
        if not isinstance(table.get(name, {}), Mapping)
    ]
    own = None if found else build(TuneTable, plain, "tune")
    if own is not None:
        found += _contradictions(own)
    space = _flat(table.get("space", {}))
    start = _flat(table.get("start", {}))
    affects = _flat(table.get("affects", {}))
    fixed = _flat(table.get("fixed", {}))
    found += [f"tune.fixed.{name}: also in tune.space" for name in fixed if name in space]
    found += [
        f"tune.fixed.{name}: expected one value; found {show(value)}"
        for name, value in fixed.items()
        if not isinstance(value, bool | int | float | str)
    ]
    for name, given in space.items():
        found += faults(name, given)
    for kind, names in (("start", start), ("affects", affects)):
        found += [f"tune.{kind}.{name}: not in tune.space" for name in names if name not in space]
    for name, value in start.items():
        if name in space and not _within(space[name], value):
            found.append(f"tune.start.{name}: {show(value)} is not in tune.space.{name}")
    for name, kinds in affects.items():
        if any(kind not in KINDS for kind in (kinds if isinstance(kinds, list) else [kinds])):
            found.append(f"tune.affects.{name}: expected some of {', '.join(KINDS)}; found {show(kinds)}")
    if not space:
        found.append("tune.space: no parameter; give values, such as workers = [1, 2, 4]")
    if own is None or found:
        raise ConfigError(source, found, hint="correct each line; nothing was started")
    return TuneSettings(
        goal=GOALS[own.objective],
        accuracy=own.accuracy or None,
        seconds=parse_time_s(own.budget) if own.budget else None,
        trials=own.trials or None,
        rank_s=3600 * own.rank_hours or None,
        confirm=own.confirm,
        space=space,
        start=start,
        fixed=fixed,
        affects={name: tuple(kinds if isinstance(kinds, list) else [kinds]) for name, kinds in affects.items()},
    )


def _contradictions(own: TuneTable) -> Iterator[str]:
    if (own.objective == "time_to_accuracy_s") != bool(own.accuracy):
        yield "tune.accuracy: the top-1 to reach, such as 0.75; only objective = 'time_to_accuracy_s' needs it"
    if not (own.budget or own.trials or own.rank_hours):
        yield "tune: no limit; give budget = '1 h', trials = 40 or rank_hours = 16.0"
    if own.budget:
        try:
            if parse_time_s(own.budget) <= 0:
                yield f"tune.budget: expected a time above 0; found {show(own.budget)}"
        except BadInput as error:
            yield f"tune.budget: {error.message}"


def _flat(table: object, prefix: str = "") -> dict[str, Any]:
    """Entries by dotted names: TOML reads ``train.batch = …`` as a table in a table.

    >>> _flat({"train": {"batch": [16, 32]}, "workers": {"low": 1, "high": 8}})
    {'train.batch': [16, 32], 'workers': {'low': 1, 'high': 8}}
    """
    entries: dict[str, Any] = {}
    for name, value in table.items() if isinstance(table, Mapping) else ():
        if isinstance(value, Mapping) and not RANGE_KEYS & value.keys():
            entries |= _flat(value, f"{prefix}{name}.")
        else:
            entries[f"{prefix}{name}"] = value
    return entries


def _within(given: object, value: object) -> bool:
    """Whether a checked entry of the space holds ``value``; True where the entry has a fault of its own."""
    if isinstance(given, Mapping):
        return any(True for _ in faults("", given)) or (
            isinstance(value, int | float) and given["low"] <= value <= given["high"]
        )
    return not isinstance(given, list) or value in given
