"""The one plug-in mechanism: an explicit table of built-ins, plus entry points ``allpull.<group>``.

A built-in is named as ``package.module:attribute`` and imported on first use, so reading a table costs nothing and
needs none of its entries' dependencies.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from allpull.errors import BadInput, MissingPart, UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Names of one kind of part, each with where it is defined.

    ``kind`` is the word for users ("model"), ``group`` the entry-point group ("allpull.models").
    """

    kind: str
    group: str
    builtin: Mapping[str, str]

    def names(self) -> list[str]:
        """All names, sorted.

        Raises:
            BadInput: an entry point claims a name that is taken.
        """
        return sorted(self._targets())

    def load(self, name: str) -> Any:
        """The part called ``name``, imported now.

        Raises:
            UnknownName: no such part.
            MissingPart: it is known but cannot be imported here.
        """
        targets = self._targets()
        if name not in targets:
            raise UnknownName(self.kind, name, targets)
        module, _, attribute = targets[name].partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise MissingPart(f"{self.kind} '{name}' cannot be loaded from {targets[name]}: {error}") from error

    def _targets(self) -> dict[str, str]:
        targets = dict(self.builtin)
        for point in _entry_points(self.group, tuple(sys.path)):
            if point.name in targets:
                raise BadInput(
                    f"{self.kind} '{point.name}' is defined twice: {targets[point.name]} and {point.value}",
                    hint=f"rename one, or uninstall {_origin(point)}",
                )
            targets[point.name] = point.value
        return targets


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Those of ``group`` in all packages on ``path``, sys.path: finding them opens a file of each package."""
    del path
    return tuple(sorted(entry_points(group=group), key=_origin))


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist else '?'}:{point.name}"
