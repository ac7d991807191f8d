"""Options that several probes share, and the table in which they print their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.options import exit_like, own_command
from allpull.cli.say import note
from allpull.errors import BadInput, UnknownName
from allpull.units import parse_time_s

if TYPE_CHECKING:
    from allpull.schema.run import RunRecord
    from allpull.schema.spec import RunSpec

MAX_PROBE_S = 3600.0

Ranks = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--ranks",
        help="Ranks, one process each. [default: those of a cluster file, else one per host, at least 2]",
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME[:ARGUMENT]",
        help="Where ranks run: local, ssh:HOSTS, slurm, mpi[:HOSTFILE], rehearse:CLUSTER.toml.",
    ),
]
Duration = Annotated[str, typer.Option("--for", metavar="TIME", help="Time spent on each line of the table.")]


def measure(name: str, spec: RunSpec, out: Path, options: Mapping[str, object]) -> tuple[RunRecord, Path]:
    """Run the probe called ``name``; its final record and its run directory. Its failure ends the command."""
    from allpull.jobs.probing import Probe, run_probe  # noqa: PLC0415  pydantic is not needed for --help

    probe = Probe(name=name, spec=spec, options=options, command=own_command())
    record, directory = run_probe(probe, out, notify=note)
    exit_like(record)
    return record, directory


def parse_counts(text: str, option: str, *, most: int) -> list[int]:
    """Whole numbers between 1 and ``most``, each once, smallest first.

    Raises:
        BadInput: one of them is not.

    >>> parse_counts("4,1,4", "--threads", most=8)
    [1, 4]
    """
    parts = [part.strip() for part in text.split(",")]
    bad = next((part for part in parts if not part.isdecimal() or not 1 <= int(part[:12]) <= most), None)
    if bad is not None:
        raise BadInput(f"{option} {text}: '{bad}' is not a number between 1 and {most:,}", hint=f"such as {option} 1,2")
    return sorted({int(part) for part in parts})


def parse_names(text: str, kind: str, known: Sequence[str]) -> list[str]:
    """The comma-separated names in ``text``, in the order of ``known``.

    Raises:
        UnknownName: one of them is not a ``kind`` that is ``known``.

    >>> parse_names("warm,cold", "state", ("cold", "warm", "cached"))
    ['cold', 'warm']
    """
    parts = [part.strip() for part in text.split(",")]
    unknown = next((part for part in parts if part not in known), None)
    if unknown is not None:
        raise UnknownName(kind, unknown, known)
    return [name for name in known if name in parts]


def parse_seconds(text: str, option: str = "--for") -> float:
    """A time above 0 and of at most an hour, in seconds.

    Raises:
        BadInput: it is not.
    """
    seconds = parse_time_s(text)
    if not 0 < seconds <= MAX_PROBE_S:
        raise BadInput(f"{option} {text} is not between 0 and an hour", hint=f"such as {option} 10s")
    return seconds
