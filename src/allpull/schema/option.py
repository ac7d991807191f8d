"""One option of a specification: its default, what it means, and its bounds."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(
    default: Any,
    help_text: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """One field of a specification: its default, what it means, and its bounds (None: unbounded)."""
    bounds = {name: bound for name, bound in (("ge", ge), ("gt", gt), ("le", le), ("lt", lt)) if bound is not None}
    return field(default=default, metadata={"help": help_text, "bounds": bounds})
