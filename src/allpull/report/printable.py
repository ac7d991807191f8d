"""Remove from text what could act on a terminal or a page: control characters and escape sequences.

Names, commands and log lines come from other people's programs. All of them pass through here before being shown.
"""

from __future__ import annotations

import json
import re
import unicodedata

# ECMA-48: an operating-system command (title, clipboard, link) with its text, a control sequence with its
# parameters, and the short escapes. Each class stops at the next introducer, so that matching stays linear.
_SEQUENCES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_SPACES = frozenset("\t\n\v\f\r\x85\u2028\u2029")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Controls, invisible formatting (it can reorder a line), lone surrogates, and code points without a meaning."""


def printable(text: str) -> str:
    """``text`` on one line, without control characters, escape sequences or invisible formatting.

    Line breaks and tabs become a space; the visible text of a coloured word remains without its colour.

    >>> printable("a\\x1b[31mred\\x1b[0m\\nname\\x07"), printable("\\x1b]0;title\\x07x")
    ('ared name', 'x')
    """
    if text.isprintable():  # nearly all text: nothing in it is hidden, a line break, or begins a sequence
        return text
    bare = _SEQUENCES.sub("", text)
    return "".join(
        " " if char in _SPACES else char
        for char in bare
        if char in _SPACES or unicodedata.category(char) not in _HIDDEN
    )


def inert_json(text: str) -> str:
    r"""The JSON document ``text`` with every control and invisible character of its strings escaped.

    >>> inert_json('{"a": "\u202e\x9b"}')
    '{"a": "\\u202e\\u009b"}'
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(
        char if char == "\n" or not _is_hidden(char) else json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f"
        for char in text
    )


def _is_hidden(char: str) -> bool:
    return char in _SPACES or unicodedata.category(char) in _HIDDEN


def short(text: str, limit: int) -> str:
    """``printable(text)`` in at most ``limit`` characters, the last one an ellipsis if the text was cut.

    >>> short("resnet50-on-imagenet", 9)
    'resnet50…'
    """
    bare = printable(text[: 4 * limit + 1024])
    return bare if len(bare) <= limit else bare[: limit - 1] + "…"
