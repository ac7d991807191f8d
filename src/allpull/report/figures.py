"""Every chart of the report as a figure for a proposal: PNG, SVG and PDF, legible at 8 cm wide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from allpull.report.atomic_file import place
from allpull.report.html import draw
from allpull.report.html.block import Block, Chart
from allpull.report.html.chart import FIGURE, dress
from allpull.report.html.page_limits import bounded
from allpull.report.sections import blocks
from allpull.schema.reported import ScalingReport

FORMATS: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    "png": draw.png,
    "svg": lambda spec: draw.svg(spec).encode("utf-8"),
    "pdf": draw.pdf,
}


def write_figures(report: ScalingReport, directory: Path) -> list[Path]:
    """Write each chart of ``report`` to ``directory`` (created if missing) as ``<chart>.png``, ``.svg`` and ``.pdf``.

    The file names are those of the charts (``throughput``, ``phases``, ``steps``, ``loss``, ``accuracy``), and
    existing files of those names are replaced. Returns the paths written; empty if nothing was measured.

    Raises:
        BadInput: the report contains no run, or ``directory`` cannot be written.
    """
    return place_figures(blocks(bounded(report)).values(), directory)


def place_figures(sections: Iterable[Block], directory: Path) -> list[Path]:
    """Write each chart of ``sections`` to ``directory``, as ``write_figures`` does."""
    charts = [part for block in sections for part in block.parts if isinstance(part, Chart)]
    written = []
    for chart in charts:
        dressed = dress(chart, FIGURE)
        written += [place(directory / f"{chart.slug}.{kind}", make(dressed)) for kind, make in FORMATS.items()]
    return written
