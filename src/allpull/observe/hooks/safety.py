"""Keep errors of observation from the program that is observed."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def safely(part: str, otherwise: Any = None) -> Callable[[Method], Method]:
    """Keep an error of ours from the program: ``part`` of observation ends with it, and answers ``otherwise``.

    For methods of what has a ``session`` and the set of parts that ``failed``. The shapes are one function, written
    out for those that run many times a step: to pass on any arguments costs as much as all the rest.
    """

    def protect(method: Method) -> Method:
        def failed(self: Any, error: Exception) -> Any:
            self.failed.add(part)
            self.session.part_failed(part, error)
            return otherwise

        @functools.wraps(method)
        def of_any(self: Any, *args: Any, **kwargs: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  whatever it is, it is not the program's
                return failed(self, error)

        @functools.wraps(method)
        def of_none(self: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self)
            except Exception as error:  # noqa: BLE001
                return failed(self, error)

        @functools.wraps(method)
        def of_one(self: Any, one: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self, one)
            except Exception as error:  # noqa: BLE001
                return failed(self, error)

        @functools.wraps(method)
        def of_two(self: Any, one: Any, two: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self, one, two)
            except Exception as error:  # noqa: BLE001
                return failed(self, error)

        code = method.__code__
        plain = not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) and not code.co_kwonlyargcount
        shapes: Dict[int, Any] = {1: of_none, 2: of_one, 3: of_two}
        shape = shapes.get(code.co_argcount, of_any) if plain and not method.__defaults__ else of_any
        return cast("Method", shape)

    return protect
