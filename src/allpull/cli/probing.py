"""A probe as a job of its own: where it runs, on how many ranks, and what they are asked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.say import note
from allpull.errors import BadInput, UnknownName
from allpull.units import parse_time_s

if TYPE_CHECKING:
    from allpull.schema.run import RunRecord
    from allpull.schema.spec import RunSpec

MAX_RANKS = 65536
MAX_PROBE_S = 3600.0
AUTO = "auto"
USELESS = ("data.", "model.", "train.", "parallel.", "watch.", "slurm.array")  # what says something to a training alone

Ranks = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--ranks",
        help="Ranks, one process each. Not given: those of a cluster file, else one a host, at least 2.",
    ),
]
Where = Annotated[
    str | None, typer.Option("--launcher", metavar="NAME[:ARGUMENT]", help="Where ranks run, as for allpull train.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one option, such as launch.hosts=2.")
]


def count_ranks(asked: int | None, launcher: str, hosts: int = 1, *, least: int = 2) -> int:
    """How many ranks to start: those asked for, else those of the cluster file, else one a host and at least ``least``.

    ``hosts`` are those that were asked for or found, as far as the launcher itself does not name them.

    Raises:
        BadInput: they cannot be started, or the cluster file or host list holds faults.
    """
    from allpull.launch.launcher import choose  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.launch.ssh.launcher import read_hosts  # noqa: PLC0415
    from allpull.rehearse.launcher import Rehearse  # noqa: PLC0415

    if asked is not None:
        if not 1 <= asked <= MAX_RANKS:
            raise BadInput(f"-n {asked}: between 1 and {MAX_RANKS} ranks can be asked for", hint="such as -n 4")
        return asked
    name, _, argument = launcher.partition(":")
    chosen = choose(launcher) if name == "rehearse" else None
    if isinstance(chosen, Rehearse):
        return chosen.ranks
    return max(least, len(read_hosts(argument)) if name == "ssh" else hosts)


def specification(
    name: str,
    ranks: int | None,
    launcher: str | None,
    sets: Sequence[str],
    *,
    uses: Sequence[str] = (),
    least: int = 2,
) -> RunSpec:
    """The specification of the probe called ``name``, on the launcher that was asked for, or else is found here.

    ``uses`` are options of a training that it has a use for; ``least``: ranks, where nobody says how many.

    Raises:
        BadInput: an option makes no sense, or is one of a training.
    """
    from allpull.cli import running  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.config.load import bare_spec  # noqa: PLC0415
    from allpull.launch.launcher import choose  # noqa: PLC0415

    given = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in sets)}
    useless = next((key for key in given if key.startswith(USELESS) and key not in uses), None)
    if useless is not None:
        hint = ", ".join([*uses, "launch., ssh., slurm. and container. it has"])
        raise BadInput(f"--set {useless}: a probe has no use for it", hint=hint)
    where = launcher or given.get("launch.launcher", "").strip("\"'") or AUTO
    if ranks is None and given.get("launch.ranks", "").isdecimal():
        ranks = int(given["launch.ranks"])
    said = given.get("launch.hosts", "")
    hosts = int(said[:9]) if said.isdecimal() else running.find_hosts(where, os.environ).hosts
    count = count_ranks(ranks, where, hosts, least=least)
    ours = [f"launch.ranks={count}", f"launch.launcher={json.dumps(where)}"]
    spec = running.settle(bare_spec([f"name=probe-{name}", *sets, *ours]), os.environ, sets)
    choose(spec.launch.launcher)
    running.check_restarts(spec)
    return spec


def run(name: str, spec: RunSpec, out: Path, options: dict[str, object]) -> tuple[RunRecord, Path]:
    """Run the probe called ``name`` as a job of its own; its final record and its run directory."""
    from allpull.cli import running  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.launch.execute import execute  # noqa: PLC0415
    from allpull.launch.job import prepare  # noqa: PLC0415
    from allpull.launch.launcher import choose  # noqa: PLC0415

    running.need_torch()
    chosen = choose(spec.launch.launcher)
    job = prepare(spec, kind="probe", module=f"allpull.probe.{name}", command=[*sys.argv], out=out, options=options)
    record = execute(job, chosen, lambda: None, note)
    note(f"run directory: {job.directory}")
    running.pass_on(record)
    return record, job.directory


def parse_counts(text: str, option: str, *, most: int) -> list[int]:
    """Whole numbers between 1 and ``most``, each once, smallest first.

    Raises:
        BadInput: one is none.

    >>> parse_counts("4,1,4", "--threads", most=8)
    [1, 4]
    """
    words = [word.strip() for word in text.split(",")]
    odd = next((word for word in words if not word.isdecimal() or not 1 <= int(word[:12]) <= most), None)
    if odd is not None:
        raise BadInput(f"{option} {text}: '{odd}' is not a number between 1 and {most:,}", hint=f"such as {option} 1,2")
    return sorted({int(word) for word in words})


def parse_names(text: str, kind: str, known: Sequence[str]) -> list[str]:
    """Those of ``known`` that ``text`` names, with commas, in the order of ``known``.

    Raises:
        UnknownName: one is none of them; ``kind`` says of what.

    >>> parse_names("warm,cold", "state", ("cold", "warm", "cached"))
    ['cold', 'warm']
    """
    words = [word.strip() for word in text.split(",")]
    odd = next((word for word in words if word not in known), None)
    if odd is not None:
        raise UnknownName(kind, odd, known)
    return [name for name in known if name in words]


def parse_seconds(text: str, option: str = "--for") -> float:
    """A time above 0 and of at most an hour, in seconds.

    Raises:
        BadInput: it is not.
    """
    seconds = parse_time_s(text)
    if not 0 < seconds <= MAX_PROBE_S:
        raise BadInput(f"{option} {text} is not between 0 and an hour", hint=f"such as {option} 10s")
    return seconds


def is_here(spec: RunSpec) -> bool:
    """Whether ranks run where we do, so that what they will look for can be looked at beforehand."""
    return spec.launch.launcher.partition(":")[0] in {"local", "rehearse"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns under their heads as text: the first to the left, all others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
