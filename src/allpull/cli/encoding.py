"""Write text in ASCII where the locale has no more: ``+-`` for a plus-minus sign, ``x`` for times, never ``?``."""

from __future__ import annotations

import codecs
import json
import locale
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from io import TextIOWrapper

ASCII = {
    "±": "+-", "×": "x", "÷": "/", "µ": "u", "μ": "u", "–": "-", "—": "-", "−": "-", "•": "*", "·": "-", "…": "...",
    "→": "->", "←": "<-", "≥": ">=", "≤": "<=", "≈": "~", "α": "alpha", "β": "beta", "λ": "lambda",
    "σ": "sigma", "θ": "theta",
    "Σ": "sum", "√": "sqrt", "∞": "inf", "°": "deg", "├": "|", "└": "`", "↑": "^", "↓": "v",
    "─": "-", "━": "-", "╸": "-", "╺": "-", "═": "=", "│": "|", "┃": "|",
    "▁": "_", "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "█": "#", "✓": "ok",
    "✗": "x",
    "‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u202f": " ", "\u2009": " ",
}  # fmt: skip
"""Characters that allpull prints, in ASCII."""

ERRORS = "allpull.ascii"
"""Name of the error handler of codecs that writes what an encoding lacks in ASCII."""

_GAP = re.compile(" {3,}|(?<=[^ ]) {2}(?=[^ ])")  # between two columns


def transliterate(character: str) -> str:
    """``character`` in ASCII: of a letter with an accent the letter, of what has no likeness a question mark.

    >>> [transliterate(one) for one in "±×é漢"]
    ['+-', 'x', 'e', '?']
    """
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return ASCII.get(character) or plain or "?"


def in_encoding(text: str, encoding: str) -> str:
    """``text`` with what ``encoding`` lacks in ASCII; columns stay where they are if the gap after one has room.

    >>> print(in_encoding("258 ± 11    60 ms", "ascii"), in_encoding("258 ± 11    60 ms", "utf-8"), sep="|")
    258 +- 11   60 ms|258 ± 11    60 ms
    """
    return "\n".join(_line(line, encoding) for line in text.split("\n"))


def _line(line: str, encoding: str) -> str:
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        pass
    else:
        return line
    written, owed = "", 0  # owed: characters by which the line has grown
    for part in re.split(f"({_GAP.pattern})", line):
        if part and not part.strip(" ") and written:
            room = min(owed, len(part) - 1)
            written, owed = written + part[room:], owed - room
            continue
        for character in part:
            shown = character if _fits(character, encoding) else transliterate(character)
            written, owed = written + shown, owed + len(shown) - 1
    return written


def _fits(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def json_in_encoding(document: str, encoding: str) -> str:
    r"""The JSON ``document`` with characters that ``encoding`` lacks escaped, so that it says the same.

    >>> json_in_encoding('{"a": "3 µs"}', "ascii")
    '{"a": "3 \\u00b5s"}'
    """
    try:
        document.encode(encoding)
    except UnicodeEncodeError:
        return "".join(one if _fits(one, encoding) else json.dumps(one)[1:-1] for one in document)
    return document


def locale_encoding(environment: Mapping[str, str], *, is_utf8_mode: bool, own: str) -> str | None:
    """The encoding for text, where Python uses UTF-8 although the locale has another one, ``own``; else None.

    Python does so in the locales C and POSIX (PEP 540), also where it is not told to by PYTHONUTF8 or PYTHONIOENCODING.
    """
    is_chosen = bool({"PYTHONUTF8", "PYTHONIOENCODING"} & environment.keys()) or "utf8" in sys._xoptions
    return own if is_utf8_mode and not is_chosen and codecs.lookup(own).name != "utf-8" else None


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(transliterate, error.object[error.start : error.end])), error.end


def prepare_streams() -> None:
    """Let stdout and stderr write in the encoding of the locale, and in ASCII what it lacks."""
    codecs.register_error(ERRORS, _replace)
    encoding = locale_encoding(os.environ, is_utf8_mode=bool(sys.flags.utf8_mode), own=locale.getencoding())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors=ERRORS)
