"""The parts of a report section: plain text, tables, lists and charts, without markup.

A section returns a ``Block``; the page escapes its contents, and the figures take its charts. ``kind`` names the
macro in ``page.html`` that draws a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Tone = Literal["good", "fair", "poor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One paragraph; a ``quiet`` one is set in small type, as a note under a chart."""

    kind: ClassVar[str] = "text"
    text: str
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A list of sentences."""

    kind: ClassVar[str] = "points"
    items: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A warning to read before trusting the numbers; ``bad`` if a run failed."""

    kind: ClassVar[str] = "notice"
    title: str
    items: Sequence[str]
    bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large number with its meaning."""

    value: str
    label: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """A row of large numbers."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under ``columns``; the first ``text_columns`` columns hold text, the others numbers.

    ``marked`` are the indices of highlighted rows; ``tones`` colour single cells, by row and column: good, fair, poor.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    marked: frozenset[int] = frozenset()
    tones: Mapping[tuple[int, int], Tone] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One finding: what it is, what it costs, what to do, and the evidence for it.

    ``facts`` are short (label, value) pairs, ``evidence`` rows of (what, value, source); ``commands`` are the parts of
    ``remedy`` to copy.
    """

    title: str
    tag: str
    facts: Sequence[tuple[str, str]]
    remedy: str
    evidence: Sequence[tuple[str, str, str]]
    caveat: str
    commands: Sequence[Command] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """Findings, the most costly first."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[Card]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line to copy, and what it is for or where it goes."""

    label: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Lines, each with a button that copies it."""

    kind: ClassVar[str] = "commands"
    commands: Sequence[Command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Files of ``directory``, called ``title``; the page turns their paths into links relative to itself."""

    kind: ClassVar[str] = "links"
    title: str
    directory: str
    paths: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms and their definitions."""

    kind: ClassVar[str] = "terms"
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Output lines of a program, verbatim."""

    kind: ClassVar[str] = "log"
    title: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart: a Vega-Lite specification without size, title and style, which depend on where it is drawn.

    ``slug`` names files and elements and is fixed by the section ([a-z-]); ``caption`` says how to read it;
    ``key_characters`` is the length of the longest legend entry, ``axis_characters`` that of the labels at
    the left, so that a legend can be wrapped to fit a phone. A ``zoomable`` one has a button that undoes zooming.
    """

    kind: ClassVar[str] = "chart"
    slug: str
    title: str
    caption: str
    height_px: int
    key_characters: int = 0
    axis_characters: int = 5
    zoomable: bool = False
    spec: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A slider that moves all charts of its section that have the parameter ``name``, from 0 to the last of ``texts``.

    ``texts``: what is shown, and spoken, at each place. It begins at the last, which the still pictures show.
    """

    kind: ClassVar[str] = "slider"
    name: str
    label: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with its ``options``, and for each of them the ``answers`` that it gets."""

    label: str
    options: Sequence[str]
    answers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Questions to answer before the parts after it in its section show; in print and without scripts all show."""

    kind: ClassVar[str] = "guess"
    slug: str
    questions: Sequence[Question]


Part = Text | Points | Notice | Tiles | Table | Cards | Commands | Links | Terms | Log | Chart | Slider | Guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One section: a title, one plain sentence, and its parts from top to bottom."""

    title: str
    lead: str
    parts: Sequence[Part] = ()
