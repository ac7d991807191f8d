"""The one plug-in mechanism: an explicit table of built-ins, plus entry points ``allpull.<group>``.

A built-in is named as ``package.module:attribute`` and imported when it is first asked for, so that looking at
a table costs nothing and needs none of what its entries need.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from allpull.errors import BadInput, MissingPart, UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Names of one kind of part, each with the place where it is defined.

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
        return sorted(self._places())

    def load(self, name: str) -> Any:
        """The part called ``name``, imported now.

        Raises:
            UnknownName: no such part.
            MissingPart: it is known but cannot be imported here.
        """
        places = self._places()
        if name not in places:
            raise UnknownName(self.kind, name, places)
        module, _, attribute = places[name].partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise MissingPart(f"{self.kind} '{name}' cannot be loaded from {places[name]}: {error}") from error

    def _places(self) -> dict[str, str]:
        places = dict(self.builtin)
        for point in sorted(entry_points(group=self.group), key=_origin):
            if point.name in places:
                raise BadInput(
                    f"{self.kind} '{point.name}' is defined twice: {places[point.name]} and {point.value}",
                    hint=f"rename one, or uninstall {_origin(point)}",
                )
            places[point.name] = point.value
        return places


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist else '?'}:{point.name}"
