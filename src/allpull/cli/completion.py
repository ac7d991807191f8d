"""What a shell offers after TAB: runs, recipes, rules and keys of ``--set``. A fault offers nothing.

Shells evaluate what we print, and names of runs come from other people's programs: only plain words are offered.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from allpull.errors import AllpullError

MOST_NAMES = 200  # runs, the newest, whose names are read
SCRIPT_PARTS = ("observe", "watch")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")


def no_space_after_keys() -> None:
    """Have the script for bash end ``KEY=`` without a space, as zsh and fish do; the value follows."""
    from typer import _completion_shared  # noqa: PLC0415  its only place, and private

    scripts = getattr(_completion_shared, "_completion_scripts", {})
    end, test = "    return 0\n", "    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace\n"
    if end in scripts.get("bash", ""):
        scripts["bash"] = scripts["bash"].replace(end, test + end)


def runs(incomplete: str) -> list[str]:
    """``latest``, ids and names of the runs in ``runs``, or of the folder that ``incomplete`` names."""
    from allpull.rundir import layout  # noqa: PLC0415  not needed for --help
    from allpull.rundir.read.places import LATEST, find_runs  # noqa: PLC0415

    folder, slash, _ = incomplete.rpartition("/")
    place = Path(folder or "/") if slash else Path(layout.RUNS)
    if not place.is_dir():
        return []
    with suppress(AllpullError, OSError):
        found = [run for run in find_runs(place) if run != place]
        words = [LATEST, *(run.name for run in reversed(found))] if found else []
        words += [name for name in map(_name, found[-MOST_NAMES:]) if name is not None]
        here = [layout.RUNS] if not slash else []
        return _fitting([*here, *(f"{folder}{slash}{word}" for word in words)], incomplete)
    return []


def recipes(incomplete: str) -> list[str]:
    """Shipped recipes, and TOML files here."""
    from allpull.config.load import recipes as shipped  # noqa: PLC0415

    return _fitting([*shipped(), *(path.name for path in Path().glob("*.toml"))], incomplete)


def rules(incomplete: str) -> list[str]:
    """Rules by their slugs."""
    from allpull.explain.rules import names  # noqa: PLC0415

    return _fitting(names(), incomplete)


def keys(incomplete: str) -> list[str]:
    """Keys of ``--set`` of a recipe, with the sign after them."""
    return _keys_of(None, incomplete)


def command_keys(incomplete: str) -> list[str]:
    """Keys of ``--set`` of a command."""
    from allpull.jobs.command import RANK_OPTIONS  # noqa: PLC0415

    return _keys_of((*SCRIPT_PARTS, *RANK_OPTIONS), incomplete)


def script_keys(incomplete: str) -> list[str]:
    """Keys of ``--set`` of a batch script."""
    return _keys_of(SCRIPT_PARTS, incomplete)


def _keys_of(parts: tuple[str, ...] | None, incomplete: str) -> list[str]:
    from allpull.schema.spec import RunSpec  # noqa: PLC0415

    every = list(_leaves(RunSpec, ""))
    return _fitting((key for key in every if parts is None or key.partition(".")[0] in parts), incomplete, end="=")


def _leaves(kind: Any, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        name = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(hints[item.name]):
            yield from _leaves(hints[item.name], f"{name}.")
        else:
            yield name


def _name(run: Path) -> str | None:
    from allpull.rundir.run_record import read_record  # noqa: PLC0415

    with suppress(AllpullError, OSError):
        return read_record(run).name
    return None


def _fitting(words: Iterable[str], incomplete: str, *, end: str = "") -> list[str]:
    plain = (word for word in words if word.startswith(incomplete) and _PLAIN.fullmatch(word))
    return [f"{word}{end}" for word in dict.fromkeys(plain)]
