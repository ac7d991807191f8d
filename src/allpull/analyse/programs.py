"""Which runs are of one program: only their throughputs are compared, for only there a sample is the same work."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allpull.analyse.aligned import AlignedRun
from allpull.rundir.read.run import RunData
from allpull.rundir.user_command import user_command
from allpull.schema.run import RunRecord

GRADIENTS = "import.gradients"
WORK_FACTS = ("model.", "data.", "rehearsal.shrink", "rehearsal.accelerator.model", GRADIENTS)
"""Beginnings of the options that decide what a sample costs."""

HOW_READ = frozenset(
    f"data.{name}"
    for name in (
        *("path", "test_path", "limit", "test_size", "test_resize", "threads", "ahead", "block", "mixed"),
        *("on_odd", "odd_limit", "access", "cached"),
    )
)
"""Options of data that change where, how many and in which order samples are read."""

NEUTRAL_WORDS = frozenset(
    (
        *("b", "batch", "bs", "batchsize", "accum", "accumulation", "lr", "learning", "warmup", "momentum", "decay"),
        *("seed", "epoch", "epochs", "step", "steps", "iter", "iters", "iterations", "worker", "workers", "threads"),
        *("port", "master", "out", "output", "log", "logs", "logging", "save", "checkpoint", "checkpoints", "ckpt"),
        *("resume", "run", "tag", "project", "experiment", "started"),
    )
)
"""Words in names of a program's options: they change how long or where it trains, or how samples are grouped."""

DECIDING_WORDS = frozenset(("model", "data", "dataset", "norm"))
"""Words in names of options that decide what a sample costs, whatever else the name says."""

IMPORT = "import"  # the kind of runs of which only traces are known
DIGEST_CHARACTERS = 8
CONTENTS = "contents"  # of the script, among the facts of a program
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a run trains: a ``name`` for people, and the facts that decide what a sample costs."""

    kind: str
    name: str
    work: Mapping[str, str] = field(default_factory=dict)

    def is_same(self, other: Program) -> bool:
        """Whether both train the same: what one of them does not state counts as equal only for imported traces."""
        if self.kind == other.kind == IMPORT:
            return all(other.work.get(name, value) == value for name, value in self.work.items())
        return (self.kind, self.work) == (other.kind, other.work)

    def is_edited(self, other: Program) -> bool:
        """Whether both are the same program with the same options, but the script was edited in between."""
        own, others = ({name: value for name, value in one.work.items() if name != CONTENTS} for one in (self, other))
        return self.kind == other.kind and own == others and not self.is_same(other)


def program(record: RunRecord) -> Program:
    """The program of a run."""
    spec = flat(record.spec)
    work = {name: value for name, value in spec.items() if decides_work(name)}
    if record.kind != "run":
        return Program(kind=record.kind, name=spec.get("name", record.name), work=work)  # whatever it is called since
    command = user_command(record.command)
    if not command.program:
        return Program(kind=IMPORT, name="imported traces", work=work)
    work |= {name: value for name, value in command.options.items() if not _is_neutral(name)}
    work |= {"program": command.program, CONTENTS: (record.script_sha256 or "")[:DIGEST_CHARACTERS]}
    return Program(kind="run", name=command.program, work=work)


def decides_work(option: str) -> bool:
    """Whether an option of the specification decides what a sample costs."""
    return option.startswith(WORK_FACTS) and option not in HOW_READ


def precision(run: RunData) -> str | None:
    """The precision of a step's arithmetic: a training's option, or the autocast that an observed program used.

    None: not recorded, as for programs on a CPU.
    """
    train = run.record.spec.get("train")
    if run.record.kind == "train" and isinstance(train, Mapping):
        stated = train.get("precision")
        return stated if isinstance(stated, str) else None
    used = (step.autocast for log in run.events.values() for step in log.device_steps if step.autocast)
    return next(used, None)


def has_steps(run: RunData) -> bool:
    """Whether ``run`` trained: probes, and jobs that failed before their first step, did not."""
    return run.record.kind != "probe" and not run.steps.is_empty()


def by_program(runs: Sequence[AlignedRun]) -> list[list[AlignedRun]]:
    """``runs`` in groups of one program each, in their order; the group with the most ranks, then the latest, first."""
    groups: list[tuple[Program, list[AlignedRun]]] = []
    for run in runs:
        own = program(run.data.record)
        group = next((members for known, members in groups if known.is_same(own)), None)
        if group is None:
            groups.append((own, [run]))
        else:
            group.append(run)
    return sorted((members for _, members in groups), key=_size, reverse=True)


def titles(programs: Sequence[Program]) -> list[str]:
    """A name for each of several programs, all different: those of one name are told apart by what differs.

    >>> big, small = (Program(kind="run", name="a.py", work={"--size": size, "--gpu": "given"}) for size in "92")
    >>> titles([big, small, Program(kind="run", name="b.py")])
    ['a.py (--size 9)', 'a.py (--size 2)', 'b.py']
    """
    return [_title(one, [other for other in programs if other.name == one.name]) for one in programs]


def flat(value: object, path: str = "") -> dict[str, str]:
    """The leaves of nested mappings as text, by dotted path; those that are None are left out."""
    if not isinstance(value, Mapping):
        return {} if value is None else {path: str(value)}
    parts = [flat(part, f"{path}.{name}" if path else str(name)) for name, part in value.items()]
    return {key: text for part in parts for key, text in part.items()}


def _is_neutral(option: str) -> bool:
    words = set(_WORD.findall(option.lower()))
    return bool(words & NEUTRAL_WORDS) and not words & DECIDING_WORDS


def _size(runs: Sequence[AlignedRun]) -> tuple[int, str]:
    records = [run.data.record for run in runs]
    return max(record.ranks for record in records), max(record.created_utc for record in records)


def _title(one: Program, namesakes: Sequence[Program]) -> str:
    names = dict.fromkeys(name for other in namesakes for name in other.work)
    differing = [name for name in names if len({other.work.get(name) for other in namesakes}) > 1]
    told_apart = [f"{name} {one.work.get(name) or 'not given'}" for name in differing]
    if len({other.kind for other in namesakes}) > 1:
        told_apart.insert(0, one.kind)
    return f"{one.name} ({', '.join(told_apart)})" if told_apart else one.name
