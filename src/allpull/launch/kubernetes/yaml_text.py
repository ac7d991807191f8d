"""Write plain values as YAML: mappings and lists in blocks, texts quoted as JSON, several lines as a literal block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""Words that YAML 1.1 reads as something else than text."""


def yaml_text(value: object) -> str:
    r"""``value`` as a YAML document.

    >>> print(yaml_text({"a": [{"b": "x y", "c": 1}], "d": {}, "e": "1", "f": "one\n two\n"}), end="")
    a:
      - b: "x y"
        c: 1
    d: {}
    e: "1"
    f: |
      one
       two
    """
    return "".join(f"{line}\n" if line else "\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _entry(f"{_scalar(str(key))}:", part)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for part in value:
            if isinstance(part, str) and _is_block(part):
                yield from _entry("-", part)
                continue
            first, *more = _lines(part)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in more)
    else:
        yield _scalar(value)


def _entry(key: str, value: object) -> Iterator[str]:
    if isinstance(value, str) and _is_block(value):
        yield f"{key} |"
        yield from (f"  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    elif isinstance(value, Mapping | Sequence) and not isinstance(value, str) and value:
        yield key
        yield from (f"  {line}" if line else "" for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _is_block(text: str) -> bool:
    """Whether ``text`` reads back from a literal block: printable, not indented, and with one line end at its end."""
    one_end = text.endswith("\n") and not text.endswith("\n\n") and not text.startswith((" ", "\n"))
    return one_end and text.count("\n") > 1 and all(char == "\n" or char.isprintable() for char in text)


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
