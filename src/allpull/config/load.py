"""Read a recipe and its overrides: one specification, or every fault in both at once.

In this package, only this module reads files.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

from allpull.config.checks import find_contradictions
from allpull.config.typed import MAX_TEXT, TEXTS, build, find_faults, show, show_text, type_at
from allpull.errors import BadInput, ConfigError, UnknownName
from allpull.regular_file import regular
from allpull.schema.spec import RunSpec

MAX_BYTES = 1 << 20  # a specification is a page of text
MAX_PATH_SHOWN = 400  # characters of a path in a message
MAX_LINE = MAX_TEXT + 256  # characters; tomllib takes time that grows as the square of the dots in a key

_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){0,15}")
_COMMENT = re.compile(r"#+\s*(.*)")

Spelling: TypeAlias = Callable[[str], str]
"""How a user writes the override ``train.epochs=3``: ``--set`` on a command line, an argument in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Override:
    """One override: ``text`` as the user wrote it, shown safely, ``path`` to the option and its ``value``."""

    text: str
    path: tuple[str, ...]
    value: Any


def as_set_option(assignment: str) -> str:
    """How the command line writes an override.

    >>> as_set_option("train.epochs=3")
    '--set train.epochs=3'
    """
    return f"--set {assignment}"


def load_spec(recipe: str, overrides: Sequence[str] = (), *, spelling: Spelling = as_set_option) -> RunSpec:
    """The specification of ``recipe`` with ``overrides`` (``train.epochs=3``) applied in order.

    ``recipe`` is the name of a shipped recipe, or else the path of a TOML file. The value of an override is read
    as TOML; what is not TOML is plain text, so ``data.name=digits`` needs no quotes. Faults name an
    override in the user's ``spelling``.

    Raises:
        UnknownName: ``recipe`` is neither a shipped name nor a path.
        BadInput: the file cannot be read.
        ConfigError: with a line for every fault, in the file and in the overrides.
    """
    source, text = _read(recipe)
    plain, faults = parse_toml(text)
    return _checked(source, plain, faults, [_parse_override(text, spelling) for text in overrides])


def bare_spec(overrides: Sequence[str] = (), *, spelling: Spelling = as_set_option) -> RunSpec:
    """The specification that ``overrides`` define without a recipe.

    Raises:
        ConfigError: with a line for every fault.
    """
    return _checked("options", {}, [], [_parse_override(text, spelling) for text in overrides])


def _checked(source: str, plain: dict[str, Any], faults: list[str], overrides: Sequence[_Override | str]) -> RunSpec:
    applied, override_faults = _apply(plain, overrides)
    faults += override_faults + find_faults(RunSpec, plain, origins=applied)
    if faults:
        raise ConfigError(source, faults, hint="fix each line; nothing was started")
    spec = build(RunSpec, plain, source)
    contradictions = find_contradictions(spec)
    if contradictions:
        raise ConfigError(source, contradictions, hint="change one of the two options that each line names")
    return spec


def recipes() -> dict[str, str]:
    """Names of the shipped recipes, sorted, each with its description, its first comment line."""
    titles = {}
    for item in resources.files("allpull.config").joinpath("recipes").iterdir():
        if item.name.endswith(".toml"):
            lines = item.read_text(encoding="utf-8").splitlines()
            comment = _COMMENT.match(lines[0]) if lines else None
            titles[item.name.removesuffix(".toml")] = comment.group(1) if comment else ""
    return dict(sorted(titles.items()))


def _read(recipe: str) -> tuple[str, str]:
    """The recipe's name for messages, and its text."""
    known = recipes()
    if recipe in known:
        shipped = resources.files("allpull.config").joinpath("recipes", f"{recipe}.toml")
        return f"recipe '{recipe}'", shipped.read_text(encoding="utf-8")
    shown = show_text(recipe, MAX_PATH_SHOWN)
    # os.path.exists returns False where pathlib raises: a name that is too long, or with a NUL in it
    if not ("/" in recipe or os.sep in recipe or recipe.endswith(".toml") or os.path.exists(recipe)):  # noqa: PTH110
        raise UnknownName("recipe", shown, known, hint="or give the path of a file that ends in .toml")
    return shown, _decode(shown, _read_bytes(recipe, shown))


def _read_bytes(path: str, shown: str) -> bytes:
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise BadInput(f"'{shown}' is a directory, not a TOML file", hint="name the file in it") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        raise BadInput(
            f"cannot read '{shown}': {reason.lower()}", hint=f"shipped recipes: {', '.join(recipes())}"
        ) from error
    if len(content) > MAX_BYTES:
        raise BadInput(f"'{shown}' is larger than 1 MiB: not a recipe", hint="a recipe is a page of TOML")
    return content


def _decode(shown: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # some editors put a byte-order mark first
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{shown}: line {line} is not UTF-8", hint="save it as UTF-8") from error


def parse_toml(text: str) -> tuple[dict[str, Any], list[str]]:
    """The tables of a TOML text, and its fault if it is not valid; then the tables are empty."""
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            return {}, [f"line {number} has {len(line):,} characters; at most {MAX_LINE:,} are read"]
    try:
        return tomllib.loads(text), []
    except RecursionError:
        return {}, ["arrays or tables are nested too deeply"]
    except tomllib.TOMLDecodeError as error:
        return {}, [_syntax_fault(str(error))]
    except ValueError:  # from int(): PYTHONINTMAXSTRDIGITS may allow fewer digits than a line has
        return {}, ["a number has too many digits"]


def _syntax_fault(message: str) -> str:
    """The message of tomllib, with the position in front.

    >>> _syntax_fault("Invalid value (at line 3, column 9)")
    'line 3, column 9: invalid value'
    """
    problem, _, place = message.rpartition(" (at ")
    problem = show_text(problem[:1].lower() + problem[1:])
    return f"{place.rstrip(')')}: {problem}"


def _apply(plain: dict[str, Any], overrides: Sequence[_Override | str]) -> tuple[dict[str, str], list[str]]:
    """Apply overrides to ``plain``; returns the option that each set (path → text), and the faults of invalid ones."""
    applied: dict[str, str] = {}
    faults = []
    for override in overrides:
        if isinstance(override, str):
            faults.append(override)
            continue
        table = plain
        for name in override.path[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                faults.append(f"{override.text}: '{name}' is {show(table)} here, not a table")
                break
        else:
            table[override.path[-1]] = override.value
            applied[".".join(override.path)] = override.text
    return applied, faults


def _parse_override(text: str, spelling: Spelling) -> _Override | str:
    """One override, or the fault in it."""
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    shown = spelling(show_text(text))
    if len(text) > MAX_LINE:
        return f"{shown}: {len(text):,} characters; at most {MAX_LINE:,} are read"
    if not equals or not _KEY.fullmatch(key):
        return f"{shown}: write it as table.option=value, such as train.epochs=3"
    path = tuple(key.split("."))
    value = parse_value(raw)
    if isinstance(value, dict):
        return f"{shown}: set the options of a table one by one, such as train.epochs=3"
    if type_at(RunSpec, path) in (str, TEXTS) and not isinstance(value, str | list):
        value = raw  # `name=2026` means the text
    return _Override(text=shown, path=path, value=value)


def parse_value(raw: str) -> Any:
    """``raw`` as a TOML value, or else as text.

    >>> parse_value("[1, 2]"), parse_value("digits")
    ([1, 2], 'digits')
    """
    tables, faults = parse_toml(f"value = {raw}")
    return raw if faults or tables.keys() != {"value"} else tables["value"]
