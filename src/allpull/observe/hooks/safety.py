"""Keep errors of observation away from the observed program."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])


def safely(part: str, otherwise: Any = None) -> Callable[[Method], Method]:
    """Decorate a method so that an internal error switches off ``part`` of observation, and it returns ``otherwise``.

    For methods of an object with a ``session`` and the set of parts that ``failed``. Methods that run in every step
    have ``try`` written out instead, and call ``give_up``: a decorator would double their cost.
    """

    def protect(method: Method) -> Method:
        @functools.wraps(method)
        def protected(self: Any, *args: Any, **kwargs: Any) -> Any:
            if part in self.failed:
                return otherwise
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  no error of ours may reach the program
                give_up(self, part, error)
                return otherwise

        return cast("Method", protected)

    return protect


def give_up(holder: Any, part: str, error: Exception, *methods: str, otherwise: Any = None) -> Any:
    """Switch off ``part`` of ``holder`` after ``error``: its ``methods`` return ``otherwise`` from now on."""
    holder.failed.add(part)
    for name in methods:
        setattr(holder, name, lambda *_: otherwise)
    holder.session.part_failed(part, error)
    return otherwise
