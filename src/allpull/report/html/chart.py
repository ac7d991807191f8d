"""Make a chart's specification safe, and style it for its medium: a page, a phone, 8 cm of a proposal.

Sections build charts with Altair from rows with fixed field names; user input appears only as a value in
a row or in a scale's domain, where Vega does not evaluate expressions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import altair as alt
from altair.utils import schemapi

from allpull.report.html.block import Chart
from allpull.report.printable import printable

FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
INK, MUTED, HAIRLINE = "#1C2430", "#55606B", "#E3E7EB"

LINE_KEY = alt.Legend(symbolType="stroke", symbolSize=320, symbolStrokeWidth=2.5)
"""The legend of lines: each entry is a short line."""

UNITS_S = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (math.inf, 1.0, "s"))
"""(largest time below this, factor, unit): one unit for a whole axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """Where a chart is drawn: ``width_px`` None fills the container; ``height_share`` scales the chart's height."""

    width_px: int | None
    height_share: float
    font_px: int
    titled: bool


LIVE = Canvas(width_px=None, height_share=1.0, font_px=12, titled=False)
STILL = Canvas(width_px=760, height_share=1.0, font_px=12, titled=False)
FIGURE = Canvas(width_px=330, height_share=0.62, font_px=11, titled=True)
"""At 8 cm (227 pt) wide, 330 px with 11 px letters print as 7.5 pt: the smallest that journals take."""


def spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> dict[str, Any]:
    """The Vega-Lite specification of ``chart``, without the parts that ``dress`` sets."""
    plain: dict[str, Any] = chart.to_dict(validate=schemapi.DEBUG_MODE)
    return {key: value for key, value in plain.items() if key not in {"$schema", "config"}}


@contextmanager
def unchecked() -> Iterator[None]:
    """Charts that are made within are not held against Vega-Lite's schema, which takes a third of the time of a page.

    Tests draw every chart of ours with the check.
    """
    with schemapi.debug_mode(False):
        yield


def data(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Rows as inline data; the section fixes the fields, never user input.

    They are a tuple: whatever Altair makes of a chart, such as a layer of another, it copies a list and all in it.
    """
    return alt.InlineData(values=tuple(dict(row) for row in rows))


def time_unit(longest_s: float) -> tuple[float, str]:
    """The factor and name of a readable unit for times up to ``longest_s``.

    >>> time_unit(0.25), time_unit(3.0)
    ((1000.0, 'ms'), (1.0, 's'))
    """
    return next((factor, unit) for bound, factor, unit in UNITS_S if longest_s < bound or bound == math.inf)


def dress(chart: Chart, canvas: Canvas) -> dict[str, Any]:
    """The finished Vega-Lite specification of ``chart`` on ``canvas``, safe to convert and to embed.

    Control characters would abort the SVG converter's whole process, and JSON has no infinity: both are removed here,
    whatever a section passes on.
    """
    letter_px = 0.6 * canvas.font_px
    key_px = round(44 + letter_px * chart.key_characters)  # 44: the symbol and the gaps around it
    axis_px = round(30 + letter_px * chart.axis_characters)  # 30: the axis title and gaps
    dressed = {
        **chart.spec,
        "width": canvas.width_px if canvas.width_px is not None else "container",
        "height": round(chart.height_px * canvas.height_share),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": None if canvas.width_px is None else "white",
        "description": chart.caption,
        "config": _config(canvas, max(1, ((canvas.width_px or 0) - axis_px) // key_px)),
        "usermeta": {"key_px": key_px, "axis_px": axis_px},  # with these, the page's script fits the legend
    }
    if canvas.titled:
        dressed["title"] = {"text": chart.title, "anchor": "start", "frame": "group"}
    cleaned: dict[str, Any] = _clean(dressed)
    return cleaned


def embeddable(spec_: Mapping[str, Any]) -> str:
    """A specification as JSON that is safe inside a script element: no character in it can end the element."""
    text = json.dumps(spec_, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _clean(value: Any) -> Any:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def _config(canvas: Canvas, legend_columns: int) -> dict[str, Any]:
    size = canvas.font_px
    return {
        "font": FONT,
        "aria": canvas.width_px is None,  # in a picture it would double the size of every mark
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            "labelFontSize": size,
            "titleFontSize": size,
            "titleFontWeight": "normal",
            "labelColor": MUTED,
            "titleColor": MUTED,
            "gridColor": HAIRLINE,
            "domainColor": "#B8C0C8",
            "tickColor": "#B8C0C8",
            "labelPadding": 5,
            "titlePadding": 8,
            "labelLimit": 220,
        },
        "axisX": {"labelFlush": False},
        "axisY": {"domain": False, "ticks": False},
        "legend": {
            "orient": "top",
            "direction": "horizontal",
            "title": None,
            "labelFontSize": size,
            "labelColor": INK,
            "labelLimit": 220,
            "symbolSize": 90,
            "columnPadding": 14,
            "layout": {"top": {"direction": "vertical", "anchor": "start"}},
            "columns": legend_columns,
        },
        "text": {"fontSize": size, "color": INK},
        "title": {"fontSize": size + 2, "fontWeight": 600, "color": INK, "offset": 10},
    }
