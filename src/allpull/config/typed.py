"""Build a specification from a plain dictionary, or report every fault in it at once.

Types and bounds are defined once, in the dataclasses of ``schema.spec``. A strict pydantic model is built from them
here, because pydantic reports all faults; ranks, which have no pydantic, need only the dataclasses.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
import typing
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    create_model,
)

from allpull.errors import ConfigError, nearest
from allpull.schema.spec import from_plain

Spec = TypeVar("Spec")

MAX_TEXT = 1024  # characters of a text option: more than any real path
MAX_ITEMS = 256  # texts of a list option
MAX_FAULTS = 50  # listed; a file with more than that is not a specification
MAX_SHOWN = 80  # characters of a value in a fault: enough to recognise it, and a fault stays one line
INT64 = 2**63 - 1  # TOML promises 64 bits, and so do the JSON readers of run.json

_BARE_KEY = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_SHOWN}}}")
_HIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control, surrogate, line and paragraph separators
_DIRECTION = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})  # change how text reads
TEXTS, NUMBERS = tuple[str, ...], tuple[float, ...]  # the types of list options: TOML and JSON have arrays there

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_BOUND_WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def build(kind: type[Spec], plain: object, source: str, *, origins: Mapping[str, str] | None = None) -> Spec:
    """The specification ``kind`` that ``plain`` (nested dictionaries, as TOML gives) describes.

    ``source`` names where it was read, for the message; ``origins`` maps option paths to the override that set
    them, so that a fault says which one to fix.

    Raises:
        ConfigError: with a line for every fault.
    """
    faults = find_faults(kind, plain, origins=origins)
    if faults:
        raise ConfigError(source, faults)
    checked: type = kind
    return from_plain(kind, model_of(checked).model_validate(plain).model_dump(exclude_unset=True))


def find_faults(kind: type, plain: object, *, origins: Mapping[str, str] | None = None) -> list[str]:
    """A line for each fault of ``plain`` as a ``kind``: path, expected value, value found.

    >>> from allpull.schema.spec import RunSpec
    >>> for line in find_faults(RunSpec, {"train": {"epochs": 0, "momentun": 0.9}}):
    ...     print(line)
    train.epochs: expected a whole number, at least 1 and at most 100,000; found 0
    train.momentun: no such option; did you mean 'train.momentum'?
    """
    try:
        model_of(kind).model_validate(plain)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
    else:
        return []
    lines = [
        _fault(kind, detail["type"], tuple(detail["loc"]), detail["input"]) + _blame(detail["loc"], origins or {})
        for detail in details[:MAX_FAULTS]
    ]
    if len(details) > MAX_FAULTS:
        lines.append(f"and {len(details) - MAX_FAULTS:,} more")
    return lines


@functools.cache
def model_of(kind: type) -> type[BaseModel]:
    """A strict pydantic model with the fields, defaults and bounds of dataclass ``kind``, nested ones included.

    Strict: no text becomes a number and no number a boolean, a whole number is accepted as a number, and unknown
    keys, infinities and NaN are refused.
    """
    hints = typing.get_type_hints(kind)
    fields = {item.name: (_annotation(hints[item.name], item), _default(item)) for item in dataclasses.fields(kind)}
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model(kind.__name__, __config__=config, **fields)  # type: ignore[call-overload,no-any-return]  # names are data


def options(kind: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Path and help text of every option of ``kind``, in order.

    >>> from allpull.schema.spec import RunSpec
    >>> next(options(RunSpec))
    ('name', 'name of the run, in its directory and in reports')
    """
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from options(typing.cast("type", hints[item.name]), f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", item.metadata.get("help", "")


def type_at(kind: type, path: tuple[object, ...]) -> Any:
    """The type of the option at ``path``; None where ``kind`` has no such option."""
    current: Any = kind
    for name in path:
        if current in (TEXTS, NUMBERS) and isinstance(name, int):
            return typing.get_args(current)[0]
        if not dataclasses.is_dataclass(current):
            return None
        current = typing.get_type_hints(current).get(str(name))
    return current


def show(value: object) -> str:
    """The user's value on one short line without control characters.

    >>> show("\\x1b[31mred"), show(True), show({"a": 1}), show(10**80)
    ("'\\\\x1b[31mred'", 'true', 'a table', 'a number too large for 64 bits')
    """
    if isinstance(value, str):
        return f"'{show_text(value)}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) > INT64:
        return "a number too large for 64 bits"
    if isinstance(value, int | float | dt.date | dt.time):
        return str(value)
    if value is None:
        return "nothing"
    return "a table" if isinstance(value, Mapping) else "an array" if isinstance(value, list) else "something else"


def show_text(text: str, limit: int = MAX_SHOWN) -> str:
    """``text`` with unprintable characters escaped, truncated after ``limit`` characters.

    >>> show_text("two\\nlines"), show_text("a" * 9, limit=4)
    ('two\\\\nlines', 'aaaa…')
    """
    escaped = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text[: limit + 1]
    )
    return escaped if len(escaped) <= limit else f"{escaped[:limit]}…"


def show_path(path: tuple[object, ...]) -> str:
    """A path as TOML writes it; keys that are not bare are quoted and shortened.

    >>> show_path(("train", "epochs")), show_path(("a b", "c"))
    ('train.epochs', "'a b'.c")
    """
    return ".".join(str(key) if _BARE_KEY.fullmatch(str(key)) else show(str(key)) for key in path)


def _annotation(annotation: Any, item: dataclasses.Field[Any]) -> Any:
    if dataclasses.is_dataclass(annotation):
        return model_of(typing.cast("type", annotation))
    bounds = dict(item.metadata.get("bounds", {}))
    if annotation is int and not {"le", "lt"} & set(bounds):
        bounds["le"] = INT64
    if annotation is int and not {"ge", "gt"} & set(bounds):
        bounds["ge"] = -INT64
    text = Annotated[str, StringConstraints(max_length=MAX_TEXT), AfterValidator(_printable)]
    if annotation is str:
        return text
    if annotation == TEXTS:
        return Annotated[list[text], Field(max_length=MAX_ITEMS), BeforeValidator(_listed)]
    if annotation == NUMBERS:
        number = Annotated[float, Field(allow_inf_nan=False, **bounds)]
        return Annotated[list[number], Field(max_length=MAX_ITEMS), BeforeValidator(_counted)]
    return Annotated[annotation, Field(**bounds)] if bounds else annotation


def _printable(text: str) -> str:
    for character in text:
        if unicodedata.category(character) in _HIDDEN or unicodedata.bidirectional(character) in _DIRECTION:
            raise ValueError(f"U+{ord(character):04X}")
    return text


def _listed(value: object) -> object:
    """A single text becomes a list of one."""
    return [value] if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def _counted(value: object) -> object:
    """A single number becomes a list of one."""
    return [value] if isinstance(value, int | float) else list(value) if isinstance(value, tuple) else value


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default is not dataclasses.MISSING:
        return item.default
    if item.default_factory is not dataclasses.MISSING:
        return Field(default_factory=item.default_factory)
    return ...


def _fault(kind: type, fault: str, path: tuple[object, ...], value: object) -> str:
    where = show_path(path) or "the whole"
    if fault == "missing":
        return f"{where}: missing; expected {_expected(kind, path)}"
    if fault == "extra_forbidden":
        return f"{where}: no such option{_suggest(kind, path)}"
    if fault == "invalid_key" or (fault == "string_unicode" and dataclasses.is_dataclass(type_at(kind, path))):
        return f"{where}: the name of an option must be text"
    return f"{where}: expected {_expected(kind, path)}; found {show(value)}"


def _expected(kind: type, path: tuple[object, ...]) -> str:
    expected = type_at(kind, path)
    if dataclasses.is_dataclass(expected):
        return "a table"
    if typing.get_origin(expected) is Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(expected))
    if expected == TEXTS:
        return f"a list of at most {MAX_ITEMS} texts"
    if expected is str:
        return f"text of at most {MAX_TEXT:,} characters, none of them a control character"
    option = path[:-1] if isinstance(path[-1], int) else path  # within a list: the bounds are those of each
    owner = type_at(kind, option[:-1])
    item = next(item for item in dataclasses.fields(owner) if item.name == option[-1])
    bounds = [f"{_BOUND_WORDS[name]} {bound:,}" for name, bound in item.metadata.get("bounds", {}).items()]
    description = (
        f"a list of at most {MAX_ITEMS} numbers" if expected == NUMBERS else _WORDS.get(expected, str(expected))
    )
    return ", ".join([description, *([" and ".join(bounds)] if bounds else [])])


def _suggest(kind: type, path: tuple[object, ...]) -> str:
    name = str(path[-1])[:MAX_TEXT]
    elsewhere = [option for option, _ in options(kind) if option.rpartition(".")[2] == name]
    if elsewhere:
        return f"; did you mean {' or '.join(repr(option) for option in elsewhere)}?"
    siblings = [item.name for item in dataclasses.fields(type_at(kind, path[:-1]))]
    close = nearest(name, siblings)
    return f"; did you mean '{show_path((*path[:-1], close))}'?" if close else f"; known here: {', '.join(siblings)}"


def _blame(path: tuple[object, ...], origins: Mapping[str, str]) -> str:
    """The override that set the value at ``path``, if any."""
    names = [str(part) for part in path]
    paths = [".".join(names[:length]) for length in range(len(names), 0, -1)]
    blamed = next((origins[option] for option in paths if option in origins), None)
    return f" (set by {blamed})" if blamed else ""
