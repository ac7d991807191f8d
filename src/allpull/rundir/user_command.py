"""Take the user's own command apart: the program, what starts it, and its options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

VERBS_WITH_USER_PROGRAM = ("run", "import")
"""Verbs of allpull whose runs execute the user's own program."""

RUN_OPTIONS = ("-n", "--ranks", "--launcher", "--out", "--name", "--trace", "--steps", "--set")
"""Options of `allpull run` that take a value; a test compares them with the command line."""

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCommand:
    """A user's command: its ``program``, the name of a file or module, and what follows and precedes it.

    ``path``: the program as given, None for a module. ``options``: with their values; a flag has the value "given",
    words without an option are "arguments", and words before the program are "started by". All are empty where the
    words do not start a program, as after an import.
    """

    program: str = ""
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def user_command(command: Sequence[str]) -> UserCommand:
    """The user's command in a command line of `allpull run`.

    >>> one = user_command(["allpull", "run", "--", "torchrun", "--nproc-per-node=2", "a/train.py", "--lr=1", "--amp"])
    >>> one.program, one.path, one.options
    ('train.py', 'a/train.py', {'started by': 'torchrun --nproc-per-node=2', '--lr': '1', '--amp': 'given'})
    >>> user_command(["src/allpull/__main__.py", "run", "-n", "2", "train.py"]).program
    'train.py'
    """
    return of_words(_own_words(command))


def of_words(words: Sequence[str]) -> UserCommand:
    """The command that ``words`` are, without words of allpull before it."""
    if not words:
        return UserCommand()
    scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
    modules = [index + 1 for index, word in enumerate(words[:-1]) if word == "-m"]
    position = (scripts or modules or [0])[0]
    started_by = {"started by": " ".join(words[:position])} if position else {}
    return UserCommand(
        program=PurePath(words[position]).name,
        path=words[position] if scripts or not modules else None,
        options={**started_by, **_options(words[position + 1 :])},
    )


def _own_words(command: Sequence[str]) -> list[str]:
    """The user's own command, without the words of allpull before it; empty after an import."""
    if len(command) < 2 or command[1] not in VERBS_WITH_USER_PROGRAM:
        return list(command)
    if command[1] != "run":
        return []
    remaining = iter(command[2:])
    for word in remaining:
        if word == "--":
            return list(remaining)
        if not word.startswith("-"):
            return [word, *remaining]
        if word in RUN_OPTIONS:
            next(remaining, None)
    return []


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Options with their values; a flag has the value "given", and words without an option are "arguments"."""
    values: dict[str, list[str]] = {}
    last = None
    for word in arguments:
        name, equals, value = word.partition("=")
        if _OPTION.fullmatch(name):
            values.setdefault(name, []).append(value if equals else "given")
            last = None if equals else name
        elif last is not None:
            values[last][-1] = word
            last = None
        else:
            values.setdefault("arguments", []).append(word)
    return {name: ", ".join(given) for name, given in values.items()}
