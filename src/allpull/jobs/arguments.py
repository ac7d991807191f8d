"""Options as arguments of a Python function: two underscores stand for the dot, as in ``train__epochs=3``."""

from __future__ import annotations

import json
from collections.abc import Mapping

NAMED = {"launch.ranks": "ranks", "launch.launcher": "launcher", "train.resume": "resume"}
"""Options that have an argument of their own."""


def assignments(arguments: Mapping[str, object]) -> list[str]:
    """``arguments`` as overrides.

    >>> assignments({"train__epochs": 3, "data__name": "digits", "parallel__overlap": False})
    ['train.epochs=3', 'data.name="digits"', 'parallel.overlap=false']
    """
    return [f"{name.replace('__', '.')}={json.dumps(value, default=str)}" for name, value in arguments.items()]


def as_argument(assignment: str) -> str:
    """How Python writes an override.

    >>> as_argument("train.epochs=3"), as_argument("launch.ranks=2")
    ('train__epochs=3', 'ranks=2')
    """
    option, equals, value = assignment.partition("=")
    return f"{NAMED.get(option) or option.replace('.', '__')}{equals}{value}"
