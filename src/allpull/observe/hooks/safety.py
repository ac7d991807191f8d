"""Keep errors of observation from the program that is observed."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def safely(part: str, otherwise: Any = None) -> Callable[[Method], Method]:
    """Keep an error of ours from the program: ``part`` of observation ends with it, and answers ``otherwise``.

    For methods of what has a ``session`` and the set of parts that ``failed``. What runs in every step has ``try``
    written out instead, and calls ``give_up``: to be called by way of another function costs as much again.
    """

    def protect(method: Method) -> Method:
        @functools.wraps(method)
        def protected(self: Any, *args: Any, **kwargs: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  whatever it is, it is not the program's
                give_up(self, part, error)
                return otherwise

        return cast("Method", protected)

    return protect


def give_up(holder: Any, part: str, error: Exception, *methods: str, otherwise: Any = None) -> Any:
    """``part`` of what ``holder`` observes ends with ``error``: its ``methods`` only answer ``otherwise`` then."""
    holder.failed.add(part)
    for name in methods:
        setattr(holder, name, lambda *_: otherwise)
    holder.session.part_failed(part, error)
    return otherwise
