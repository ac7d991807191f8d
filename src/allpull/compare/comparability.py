"""Comparability: the facts that compared runs must agree on, and those that they differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from allpull.analyse import scaling
from allpull.analyse.programs import GRADIENTS, flat
from allpull.errors import BadInput
from allpull.rundir.read.run import RunData
from allpull.rundir.user_command import user_command
from allpull.schema.compared import Difference

REHEARSED = ("rehearsal.shrink", "rehearsal.accelerator.model")
"""Options of a rehearsal that set the work per sample."""

NOT_COMPARED = {"name", "launch.port", "launch.ranks", "launch.hosts"}
"""Options without a meaning of their own: a label, a random port, and what the key facts hold already."""

REPEATED = {"train.seed", "seed", "host names"}
"""Facts in which repeats are expected to differ."""

MAX_NAMED = 8  # facts in an error or a note; `differences` lists all
MAX_VALUE = 200  # characters of a name or a value in the result


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that one run states: ``key`` must agree, ``other`` is reported. Facts that it does not state are absent."""

    key: Mapping[str, str]
    other: Mapping[str, str]


def facts(run: RunData) -> Facts:
    """The facts that ``run`` states."""
    record = run.record
    options = {name: value for name, value in flat(record.spec).items() if name not in NOT_COMPARED}
    key = {
        "kind of run": record.kind,
        "ranks": str(record.ranks),
        "hosts": str(len({header.host for header in run.headers.values()} or set(record.hosts))),
        **_batch(run),
        **scaling.facts(run),
        **{name: options[name] for name in REHEARSED if name in options},
        **({"elements of gradients": options.pop(GRADIENTS)} if GRADIENTS in options else {}),
    }
    other = {name: value for name, value in options.items() if name not in key}
    if record.kind == "run":
        command = user_command(record.command)
        key |= {"program": command.program} if command.program else {}
        other |= command.options
        other |= {"contents of the program": record.script_sha256[:12]} if record.script_sha256 else {}
    other |= {f"version of {name}": text for name, text in record.versions.items() if text and name != "torch"}
    other |= dict(record.environment)
    other |= {
        name: value
        for name, value in (
            ("launcher", record.launcher),
            ("seed", None if record.seed is None else str(record.seed)),
            ("host names", ", ".join(sorted(record.hosts)) or None),
            ("git commit", record.git.commit if record.git else None),
            ("uncommitted changes", ("yes" if record.git.dirty else "no") if record.git else None),
        )
        if value is not None
    }
    return Facts(key=key, other=other)


def differences(before: Sequence[Facts], after: Sequence[Facts]) -> list[Difference]:
    """The facts in which the sides differ, key facts first. A key fact that one side does not state counts as equal."""
    differing = []
    for part in ("key", "other"):
        facts_before = [getattr(run, part) for run in before]
        facts_after = [getattr(run, part) for run in after]
        for name in _names([*facts_before, *facts_after]):
            old, new = _values(facts_before, name), _values(facts_after, name)
            unknown = part == "key" and not (old and new)
            if old != new and not unknown:
                differing.append(
                    Difference(fact=name[:MAX_VALUE], before=_shown(old), after=_shown(new), key=part == "key")
                )
    return differing


def check_comparable(
    before: Sequence[Facts], after: Sequence[Facts], differing: Sequence[Difference], *, anyway: bool
) -> list[str]:
    """Notes on facts that do not agree, within the sides and between them.

    Raises:
        BadInput: a key fact does not agree and ``anyway`` is false.
    """
    conflicts = [f"{one.fact}: {one.before} before, {one.after} after" for one in differing if one.key]
    for name, side in (("before", before), ("after", after)):
        conflicts += [f"{fact}: {values} among the runs {name}" for fact, values in _varying(side, "key")]
    if conflicts and not anyway:
        raise BadInput(
            "\n  ".join(["these runs differ in facts that a fair comparison needs to agree:", *_first(conflicts)]),
            hint="compare runs that differ only in what you changed; if that is this: --anyway, anyway=True",
        )
    return [*(f"differs, and compared anyway: {line}" for line in _first(conflicts)), *_repeat_notes(before, after)]


def _repeat_notes(before: Sequence[Facts], after: Sequence[Facts]) -> Iterator[str]:
    for name, side in (("before", before), ("after", after)):
        varying = [fact for fact, _ in _varying(side, "other") if fact not in REPEATED]
        if varying:
            yield (
                f"the runs {name} are not plain repeats: they differ in {', '.join(_first(varying))}; "
                "the effect of that counts as random variation here"
            )
    keys = _names([one.key for one in (*before, *after)])
    unknown = [name for name in keys if any(name not in one.key for one in (*before, *after))]
    if unknown:
        yield f"not every run states {', '.join(_first(unknown))}: assumed to agree"


def _varying(side: Sequence[Facts], part: str) -> Iterator[tuple[str, str]]:
    """The facts that differ among the runs of one side, with their values."""
    stated = [getattr(one, part) for one in side]
    for name in _names(stated):
        values = _values(stated, name)
        if len(values) > 1 or (part == "other" and any(name not in one for one in stated)):
            yield name[:MAX_VALUE], _shown(values)


def _batch(run: RunData) -> dict[str, str]:
    """Samples per step of the job: as requested, else the most that a step had."""
    if run.record.global_batch is not None:
        return {"global batch": str(run.record.global_batch)}
    by_step = run.steps.group_by("step").agg(
        pl.col("samples").sum(), pl.len(), pl.col("samples").count().alias("known")
    )
    full = by_step.filter((pl.col("len") == run.record.ranks) & (pl.col("known") == pl.col("len")))
    return {} if full.is_empty() else {"global batch": str(full["samples"].max())}


def _names(facts: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for one in facts for name in one))


def _values(facts: Sequence[Mapping[str, str]], name: str) -> list[str]:
    return sorted({one[name] for one in facts if name in one})


def _shown(values: Sequence[str]) -> str:
    return ", ".join(values)[:MAX_VALUE] or "not set"


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MAX_NAMED
    return [*lines[:MAX_NAMED], *([f"and {more} more"] if more > 0 else [])]
