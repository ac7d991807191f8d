"""Read a pickle that contains only data: no class is looked up, nothing is called, and sizes are bounded.

``pickletools`` splits the pickle into its instructions. Those that build numbers, strings, lists and dictionaries are
executed here; any other is refused by name. pickle's own machine never runs: even without classes, a pickle can make it
allocate more memory than there is.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from io import BytesIO
from typing import Any

MAX_BYTES = 256 << 20  # of one pickle: a flight recorder of 2,000 entries takes a few megabytes
MAX_OBJECTS = 20_000_000

_MARK = object()
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_IGNORED = frozenset({"PROTO", "FRAME"})
_VALUES = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    }
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def data_of(blob: bytes) -> Any:
    """The data in the pickle ``blob``. Parts of it may be shared, or contain themselves.

    Raises:
        ValueError: it names a class, is damaged or truncated, or is too large; the message says which.
    """
    if len(blob) > MAX_BYTES:
        raise ValueError(f"a pickle of more than {MAX_BYTES:,} bytes")
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(BytesIO(blob)):
            if instruction.name == "STOP":
                return machine.pop()
            machine.step(instruction.name, argument)
    except ValueError:
        raise
    except Exception as error:  # pickletools passes on whatever its readers raise on hostile bytes
        raise ValueError(f"a damaged pickle: {type(error).__name__}") from error
    raise ValueError("a truncated pickle")


class _Machine:
    """The stack and the memo of a pickle, for data only."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._executed = 0

    def pop(self) -> Any:
        """The value on top.

        Raises:
            ValueError: there is none.
        """
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a damaged pickle: a value is missing")
        return self._stack.pop()

    def step(self, name: str, argument: Any) -> None:
        """Execute one instruction.

        Raises:
            ValueError: it does not build data, or does not fit the stack.
        """
        self._executed += 1
        if self._executed > MAX_OBJECTS:
            raise ValueError(f"a pickle of more than {MAX_OBJECTS:,} parts")
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            parts = [self.pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(parts)))
        elif not (name in _IGNORED or self._collect(name) or self._remember(name, argument)):
            raise ValueError(f"refused: this pickle does more than hold data ({name})")

    def _collect(self, name: str) -> bool:
        """Instructions that collect values into containers; False: ``name`` is none of them."""
        match name:
            case "MARK":
                self._stack.append(_MARK)
            case "TUPLE":
                self._stack.append(tuple(self._marked()))
            case "LIST":
                self._stack.append(self._marked())
            case "DICT":
                self._stack.append(_pairs(self._marked()))
            case "APPEND":
                value = self.pop()
                self._top(list).append(value)
            case "APPENDS":
                values = self._marked()
                self._top(list).extend(values)
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self._top(dict).update(_pairs([key, value]))
            case "SETITEMS":
                pairs = _pairs(self._marked())
                self._top(dict).update(pairs)
            case "ADDITEMS":
                items = self._marked()
                self._top(set).update(_hashable(item) for item in items)
            case _:
                return False
        return True

    def _remember(self, name: str, argument: Any) -> bool:
        """Instructions that copy or drop values; False: ``name`` is none of them."""
        match name:
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[int(argument)] = self._top(object)
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._top(object)
            case "GET" | "BINGET" | "LONG_BINGET":
                if int(argument) not in self._memo:
                    raise ValueError("a damaged pickle: it refers to a value that does not exist")
                self._stack.append(self._memo[int(argument)])
            case "POP":
                self._stack.pop()
            case "POP_MARK":
                self._marked()
            case "DUP":
                self._stack.append(self._top(object))
            case _:
                return False
        return True

    def _top(self, kind: type) -> Any:
        value = self.pop()
        self._stack.append(value)
        if isinstance(value, kind):
            return value
        raise ValueError(f"a damaged pickle: {type(value).__name__} where {kind.__name__} should be")

    def _marked(self) -> list[Any]:
        """The values above the last mark."""
        values = []
        while self._stack and self._stack[-1] is not _MARK:
            values.append(self._stack.pop())
        if not self._stack:
            raise ValueError("a damaged pickle: a mark is missing")
        self._stack.pop()
        values.reverse()
        return values


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise ValueError("a damaged pickle: a key without a value")
    return {_hashable(key): value for key, value in zip(values[::2], values[1::2], strict=True)}


def _hashable(key: Any) -> Any:
    """A key, if it is plain: hashing a deep tuple could overflow the stack."""
    if key is None or isinstance(key, (str, bytes, int, float)):
        return key
    raise ValueError(f"a damaged pickle: {type(key).__name__} as a key")
