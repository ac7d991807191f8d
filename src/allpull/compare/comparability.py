"""What must agree between runs that are compared, and in what they differ besides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import polars as pl

from allpull.analyse import scaling
from allpull.errors import BadInput
from allpull.rundir.read.run import RunData
from allpull.schema.compared import Difference

REHEARSED = ("rehearsal.shrink", "rehearsal.accelerator.model")
"""Of a rehearsal, what decides how much work a sample is."""

NOT_TOLD = {"name", "launch.port", "launch.ranks", "launch.hosts"}
"""Options that say nothing of their own: a label, a number that is drawn, and what stands among the key facts."""

REPEATED = {"train.seed", "seed", "host names"}
"""What repeats of one thing differ in, as they should."""

VERBS = ("run", "import")
"""Of allpull, that leave runs whose program is the user's own."""
RUN_OPTIONS = ("-n", "--ranks", "--launcher", "--out", "--name", "--trace", "--steps", "--set")
"""Options of `allpull run` that take a value; a test holds them against its command line."""

MAX_NAMED = 8  # facts in an error or a note; all of them stand in the answer
MAX_VALUE = 200  # characters of a name or a value in the answer

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one run states of itself: ``key`` must agree, ``other`` is told. A fact that it does not state is absent."""

    key: Mapping[str, str]
    other: Mapping[str, str]


def facts(run: RunData) -> Facts:
    """What ``run`` states of itself."""
    record = run.record
    options = {name: value for name, value in _flat(record.spec) if name not in NOT_TOLD}
    key = {
        "kind of run": record.kind,
        "ranks": str(record.ranks),
        "hosts": str(len({header.host for header in run.headers.values()} or set(record.hosts))),
        **_batch(run),
        **scaling.facts(run),
        **{name: options[name] for name in REHEARSED if name in options},
    }
    other = {name: value for name, value in options.items() if name not in key}
    if record.kind == "run":
        program, given = _program(record.command)
        key |= {"program": program} if program else {}
        other |= given
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
    """The facts in which the sides differ, those that must agree first. A key fact that a run does not state agrees."""
    found = []
    for part in ("key", "other"):
        ours = [getattr(side, part) for side in before]
        theirs = [getattr(side, part) for side in after]
        for name in _names([*ours, *theirs]):
            one, other = _values(ours, name), _values(theirs, name)
            unknown = part == "key" and not (one and other)
            if one != other and not unknown:
                found.append(
                    Difference(fact=name[:MAX_VALUE], before=_shown(one), after=_shown(other), key=part == "key")
                )
    return found


def check(before: Sequence[Facts], after: Sequence[Facts], found: Sequence[Difference], *, anyway: bool) -> list[str]:
    """Notes on what does not agree, within the sides and between them.

    Raises:
        BadInput: a key fact does not agree, and nobody said that it need not.
    """
    apart = [f"{one.fact}: {one.before} before, {one.after} after" for one in found if one.key]
    for name, side in (("before", before), ("after", after)):
        apart += [f"{fact}: {values} among the runs {name}" for fact, values in _unlike(side, "key")]
    if apart and not anyway:
        raise BadInput(
            "\n  ".join(["these runs are not alike in what a fair comparison needs:", *_some(apart)]),
            hint="compare runs that differ in what you changed alone; if this is what you changed, add --anyway",
        )
    return [*(f"not alike, and compared anyway: {line}" for line in _some(apart)), *_of_repeats(before, after)]


def _of_repeats(before: Sequence[Facts], after: Sequence[Facts]) -> Iterator[str]:
    for name, side in (("before", before), ("after", after)):
        unlike = [fact for fact, _ in _unlike(side, "other") if fact not in REPEATED]
        if unlike:
            yield (
                f"the runs {name} are no plain repeats: they differ in {', '.join(_some(unlike))}; "
                "what that changes counts as chance here"
            )
    keys = _names([one.key for one in (*before, *after)])
    unknown = [name for name in keys if any(name not in one.key for one in (*before, *after))]
    if unknown:
        yield f"not every run states {', '.join(_some(unknown))}: taken to agree"


def _unlike(side: Sequence[Facts], part: str) -> Iterator[tuple[str, str]]:
    own = [getattr(one, part) for one in side]
    for name in _names(own):
        values = _values(own, name)
        if len(values) > 1 or (part == "other" and any(name not in one for one in own)):
            yield name[:MAX_VALUE], _shown(values)


def _batch(run: RunData) -> dict[str, str]:
    """Samples of one step of the job: what was asked for, else the most that a step had."""
    if run.record.global_batch is not None:
        return {"global batch": str(run.record.global_batch)}
    by_step = run.steps.group_by("step").agg(
        pl.col("samples").sum(), pl.len(), pl.col("samples").count().alias("known")
    )
    full = by_step.filter((pl.col("len") == run.record.ranks) & (pl.col("known") == pl.col("len")))
    return {} if full.is_empty() else {"global batch": str(full["samples"].max())}


def _program(command: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The name of the user's program in a command line of `allpull run`, what starts it, and its options.

    >>> _program(["allpull", "run", "--", "torchrun", "--nproc-per-node=2", "a/train.py", "--lr", "1", "--amp"])
    ('train.py', {'started by': 'torchrun --nproc-per-node=2', '--lr': '1', '--amp': 'given'})
    >>> _program(["src/allpull/__main__.py", "run", "-n", "2", "train.py"])
    ('train.py', {})
    """
    words = _users(command)
    if not words:
        return "", {}
    scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
    modules = [index + 1 for index, word in enumerate(words[:-1]) if word == "-m"]
    at = (scripts or modules or [0])[0]
    started_by = {"started by": " ".join(words[:at])} if at else {}
    return PurePath(words[at]).name, {**started_by, **_options(words[at + 1 :])}


def _users(command: Sequence[str]) -> list[str]:
    """The words of the user's own command; those before are allpull's, however it was started. [] after an import."""
    if len(command) < 2 or command[1] not in VERBS:
        return list(command)
    if command[1] != "run":
        return []
    rest = iter(command[2:])
    for word in rest:
        if word == "--":
            return list(rest)
        if not word.startswith("-"):
            return [word, *rest]
        if word in RUN_OPTIONS:
            next(rest, None)
    return []


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options with their values; one that is given alone is "given", and what belongs to none is "arguments"."""
    found: dict[str, list[str]] = {}
    last = None
    for word in words:
        name, equals, value = word.partition("=")
        if _OPTION.fullmatch(name):
            found.setdefault(name, []).append(value if equals else "given")
            last = None if equals else name
        elif last is not None:
            found[last][-1] = word
            last = None
        else:
            found.setdefault("arguments", []).append(word)
    return {name: ", ".join(values) for name, values in found.items()}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flat(part, f"{path}.{name}" if path else str(name))
    elif value is not None:
        yield path, str(value)


def _names(facts: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for one in facts for name in one))


def _values(facts: Sequence[Mapping[str, str]], name: str) -> list[str]:
    return sorted({one[name] for one in facts if name in one})


def _shown(values: Sequence[str]) -> str:
    return ", ".join(values)[:MAX_VALUE] or "not set"


def _some(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MAX_NAMED
    return [*lines[:MAX_NAMED], *([f"and {more} more"] if more > 0 else [])]
