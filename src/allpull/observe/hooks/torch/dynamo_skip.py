"""Exclude our own functions, which a compiled program calls all the time, from torch's compiler.

Dynamo would compile them separately: it would trace our clocks, freeze their values, and recompile whenever our
counters change.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable, Iterator, Set

OURS = __name__.partition(".observe.")[0] + "."
LEARNED = OURS + "train."  # the reference trainer, whose networks are to be compiled


def skip_our_code(skip: Callable[[CodeType], Any]) -> None:
    """Make dynamo skip all functions of allpull except networks; ``skip`` is dynamo's function for that."""
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and not name.startswith(LEARNED):
            for code in codes_of(module):
                skip(code)


def codes_of(module: ModuleType) -> Set[CodeType]:
    """The code of all functions and methods defined in ``module``, and of the functions inside them."""
    codes: Set[CodeType] = set()
    left = [code for thing in vars(module).values() for code in _codes(thing, module.__name__)]
    while left:
        code = left.pop()
        if code not in codes:
            codes.add(code)
            left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return codes


def _codes(thing: Any, home: str) -> Iterator[CodeType]:
    if getattr(thing, "__module__", None) != home:
        return
    if isinstance(thing, type):
        for part in vars(thing).values():
            yield from _codes(part.fget if isinstance(part, property) else part, home)
    else:
        thing = getattr(thing, "__wrapped__", thing)
        if isinstance(thing, FunctionType):
            yield thing.__code__
