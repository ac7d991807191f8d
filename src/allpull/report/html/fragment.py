"""Render a few sections as one HTML fragment for a notebook: static charts and tables, no script, no network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from allpull.report.html import draw
from allpull.report.html.block import Block, Chart
from allpull.report.html.chart import STILL, dress
from allpull.report.printable import printable


def fragment(blocks: Sequence[Block], title: str = "") -> str:
    """``blocks`` below ``title`` as one ``<div>``; text is escaped, and charts are SVG."""
    template = files("allpull.report.html").joinpath("fragment.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_plain)
    return environment.from_string(template).render(blocks=blocks, title=title, svg=_svg)


def _svg(chart: Chart) -> Markup:
    return Markup(draw.svg(dress(chart, STILL)))  # noqa: S704  # vl-convert escapes; a test parses it


def _plain(value: object) -> object:
    """User text without control characters; our own markup is unchanged."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
