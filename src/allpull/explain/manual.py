"""The manual of the rules, from their own docstrings: what `allpull explain --rules` and the documentation print."""

from __future__ import annotations

import inspect
import re
import sys

from allpull.errors import UnknownName
from allpull.explain.rules import RULES, names

HEADINGS = ("What it is", "How it is found", "What it costs", "What to do", "When it is wrong")
"""The headings of every rule, in their order (STYLE 18)."""

_HEADING = re.compile(rf"^({'|'.join(HEADINGS)})\n", re.MULTILINE)


def summary(slug: str) -> str:
    """What the rule ``slug`` is about, in one line.

    Raises:
        UnknownName: there is no such rule.
    """
    return _text(slug).partition("\n")[0]


def sections(slug: str) -> dict[str, str]:
    """Heading → its paragraphs, as they stand in the rule's docstring.

    Raises:
        UnknownName: there is no such rule.
    """
    parts = _HEADING.split(_text(slug))
    return {heading: text.strip() for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def section(slug: str, heading: str) -> str:
    """One section of a rule as a single paragraph; empty where a rule of another package does not have it.

    Raises:
        UnknownName: there is no such rule.
    """
    return " ".join(sections(slug).get(heading, "").split())


def _text(slug: str) -> str:
    known = names()
    if slug not in known:
        raise UnknownName("rule", slug, known, hint="`allpull explain --rules` prints them all")
    return inspect.cleandoc(sys.modules[RULES.load(slug).__module__].__doc__ or "")
