"""Read a JSON document piece by piece, however large it is: its members, and the elements of chosen lists one by one.

Memory holds one chunk of text and one value. The document is untrusted: values are bounded, and a truncated or
damaged document raises ``ValueError`` after everything before the damage was yielded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

CHUNK = 1 << 20  # bytes read at a time
MAX_VALUE = 8 << 20  # characters of one value: far above any event, and the process groups of 100,000 ranks fit

_SPACE = re.compile(r"[ \t\r\n]*")
_AFTER_BARE = re.compile(r"[ \t\r\n,:\]}]")
_BETWEEN = re.compile(r"[ \t\r\n,]*")


class Text:
    """The text of a document; only the part not yet consumed is kept.

    ``read`` returns the next bytes, b"" at the end. Numbers that JSON does not allow (NaN) become None.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._values = json.JSONDecoder(parse_constant=lambda _: None, strict=False)
        self._unread = ""
        self._place = 0
        self._is_over = False

    def peek(self, skipped: re.Pattern[str] = _SPACE) -> str:
        """The next character that is not ``skipped``, without consuming it; "" at the end."""
        while True:
            self._place = _end(skipped.match(self._unread, self._place))
            if self._place < len(self._unread):
                return self._unread[self._place]
            if not self._more():
                return ""

    def take(self, expected: str) -> None:
        """Consume the next character.

        Raises:
            ValueError: it is not ``expected``.
        """
        character = self.peek()
        if character != expected:
            raise ValueError(f"{character!r} where {expected!r} was expected" if character else "it is truncated")
        self._place += 1

    def value(self) -> Any:
        """The next value, whole.

        Raises:
            ValueError: it is invalid, is truncated, is nested too deeply or has more than ``MAX_VALUE`` characters.
        """
        is_bare = self.peek() not in '{["'
        while True:
            if is_bare and not _AFTER_BARE.search(self._unread, self._place):  # a number may continue in the next chunk
                if len(self._unread) - self._place > MAX_VALUE or not self._more():
                    raise ValueError("it is truncated")
                continue
            try:
                value, end = self._values.raw_decode(self._unread, self._place)
            except json.JSONDecodeError as error:
                self._extend_value(error)
                continue
            except RecursionError:
                raise ValueError("nested too deeply") from None
            except ValueError:  # int() refuses it
                raise ValueError("a number of too many digits") from None
            self._place = end
            return value

    def elements(self) -> Iterator[Any]:
        """The elements of the list that begins here, one by one.

        Raises:
            ValueError: as ``value``.
        """
        self.take("[")
        yield from self._objects()
        while (character := self.peek(_BETWEEN)) != "]":
            if not character:
                raise ValueError("it is truncated")
            yield self.value()
            yield from self._objects()
        self.take("]")

    def _objects(self) -> Iterator[Any]:
        """Consecutive objects that are complete in what was read: nearly all elements of nearly all lists."""
        decode, between = self._values.raw_decode, _BETWEEN.match
        while True:
            place = _end(between(self._unread, self._place))
            if not self._unread.startswith("{", place):
                return
            try:
                value, self._place = decode(self._unread, place)
            except (ValueError, RecursionError):
                return  # truncated by the end of the chunk, or damaged: ``value`` determines which
            yield value

    def _more(self) -> bool:
        """Drop what was consumed and append the next chunk; False: there is none."""
        if self._is_over:
            return False
        blob = self._read(CHUNK)
        self._is_over = not blob
        self._unread = self._unread[self._place :] + self._decoder.decode(blob, final=not blob)
        self._place = 0
        return bool(blob) or bool(self._unread)

    def _extend_value(self, error: json.JSONDecodeError) -> None:
        """Read more where a value is incomplete; raise where it cannot be one."""
        unused = len(self._unread) - self._place
        if unused > MAX_VALUE:
            raise ValueError(f"a value of more than {MAX_VALUE:,} characters, or damage in it")
        if self._is_over:
            raise ValueError("it is truncated" if error.pos >= len(self._unread) - 1 else error.msg)
        self._more()


def members(text: Text, lists: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The members of the object in ``text`` with their names; the elements of those in ``lists`` one by one.

    A document that is a list has its elements under the name "".

    Raises:
        ValueError: the document is neither, or is damaged from here on; the message says how.
    """
    opening = text.peek()
    if opening == "[":
        yield from (("", element) for element in text.elements())
        return
    if opening != "{":
        raise ValueError("it is empty" if not opening else "it is neither an object nor a list")
    text.take("{")
    while (character := text.peek(_BETWEEN)) != "}":
        if not character:
            raise ValueError("it is truncated")
        if character != '"':
            raise ValueError(f"{character!r} where the name of a member was expected")
        name = text.value()
        text.take(":")
        if name in lists and text.peek() == "[":
            yield from ((name, element) for element in text.elements())
        else:
            yield name, text.value()


def _end(match: re.Match[str] | None) -> int:
    return match.end() if match else 0
