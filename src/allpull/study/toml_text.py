"""Write plain values as TOML, which the standard library only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(plain: Mapping[str, Any]) -> str:
    """``plain`` (booleans, numbers, texts, lists, tables) as TOML; values that are None are left out.

    >>> print(toml_text({"study": {"name": "a", "steps": 20}, "zip": [{"ranks": [1, 2]}]}))
    [study]
    name = "a"
    steps = 20
    <BLANKLINE>
    [[zip]]
    ranks = [1, 2]
    <BLANKLINE>
    """
    return "\n".join(_table(plain, ())).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None and not isinstance(value, Mapping) and not _is_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        inner = (*path, key)
        if isinstance(value, Mapping):
            yield f"\n[{'.'.join(map(_key, inner))}]"
            yield from _table(value, inner)
        elif _is_tables(value):
            for item in value:
                yield f"\n[[{'.'.join(map(_key, inner))}]]"
                yield from _table(item, inner)


def _is_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
