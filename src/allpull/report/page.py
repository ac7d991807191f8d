"""Write the report as one self-contained HTML file: no network, no fonts, readable without JavaScript.

Text becomes markup only in the template, which escapes and strips it. The page's policy (CSP) allows only
the script whose hash it names, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from allpull.report.atomic_file import place
from allpull.report.html import draw
from allpull.report.html.block import Block, Chart
from allpull.report.html.chart import LIVE, STILL, dress, embeddable, unchecked
from allpull.report.html.page_limits import bounded
from allpull.report.printable import short
from allpull.report.sections import blocks
from allpull.report.wording import rank_counts, subject
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunMetrics
from allpull.units import counted
from allpull.version import __version__

ACRONYMS = ("pop",)
TEXT_CHARACTERS = 2000  # in one cell or sentence; anything longer is a damaged record

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=[%±]|(?:[nmµ]?s|min|ranks?)\b)|(?<=±) ")
"""Where a line must not wrap: between a number and its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One chart in the page: the static image, and the specification of the interactive one as JSON."""

    svg: Markup
    json: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows: what kind of page it is, of what, when and how much, its sections by name, and its source."""

    kicker: str
    subject: str
    facts: str
    blocks: Mapping[str, Block]
    made: str = "from recorded runs"


def render(report: ScalingReport, folder: Path | None = None) -> str:
    """The whole page, with links to files of the runs for a page in ``folder``. A report always gives the same text.

    Raises:
        BadInput: the report contains no run, or details of other runs.
    """
    shown = bounded(report)
    with unchecked():
        made = blocks(shown)
    page = Page(
        kicker=_kicker(shown.show.runs),
        subject=shown.program or subject(shown.show.runs),
        facts=_facts(shown),
        blocks=made,
    )
    return render_page(page, folder)


def _kicker(runs: Sequence[RunMetrics]) -> str:
    if len({run.ranks for run in runs}) > 1:
        return "Scaling report"
    return "Run report" if len(runs) == 1 else "Report of runs"


def render_page(page: Page, folder: Path | None = None) -> str:
    """``page`` as HTML, with links for a page in ``folder``."""
    script = _script()
    return (
        _environment()
        .from_string(_asset("page.html"))
        .render(
            page=page,
            pictures=_pictures(page.blocks),
            style=Markup(_asset("page.css")),  # noqa: S704  # our own file
            script=Markup(script),  # noqa: S704  # our own file and vl-convert's bundle
            policy=_policy(script),
            version=__version__,
            linked=partial(_relative_link, folder or Path()),
        )
    )


def write(report: ScalingReport, path: Path) -> Path:
    """Write the page to ``path``, replacing what is there only once the page is complete; returns ``path``.

    Raises:
        BadInput: there is nothing to report, or ``path`` cannot be written.
    """
    return place(path, render(report, path.parent).encode("utf-8"))


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_plain, trim_blocks=False)
    environment.filters["heading"] = _heading
    return environment


def _heading(section: str) -> str:
    """The name of a section in the navigation.

    >>> _heading("learning"), _heading("pop")
    ('Learning', 'POP')
    """
    return section.upper() if section in ACRONYMS else section.capitalize()


def _plain(value: Any) -> Any:
    """Clean every value that the template prints: text is stripped and cut, our own markup is unchanged."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _BEFORE_UNIT.sub("\u00a0", short(value, TEXT_CHARACTERS))


def _relative_link(folder: Path, directory: str, path: str) -> str:
    """The link from a page in ``folder`` to ``path`` of a run directory: relative, so no scheme can be in it."""
    return f"./{quote(os.path.relpath(PurePath(directory, path), folder), errors='replace')}"


def _facts(report: ScalingReport) -> str:
    runs = report.show.runs
    days = sorted({detail.created_utc[:10] for detail in report.details})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    others = sum(len(one.show.runs) for one in report.others)
    apart = f"{counted(others, 'run')} of {counted(len(report.others), 'other program')} below" if others else ""
    return " · ".join(part for part in (counted(len(runs), "run"), f"on {rank_counts(runs)}", when, apart) if part)


def _pictures(sections: Mapping[str, Block]) -> dict[str, Picture]:
    charts = [part for block in sections.values() for part in block.parts if isinstance(part, Chart)]
    return {
        chart.slug: Picture(
            svg=Markup(draw.svg(dress(chart, STILL))),  # noqa: S704  # vl-convert escapes; a test parses it
            json=Markup(embeddable(dress(chart, LIVE))),  # noqa: S704  # escaped for a script element
        )
        for chart in charts
    }


def _script() -> str:
    """The page's only script. No text in it may end its element, and a browser hashes line breaks as LF."""
    script = draw.bundle(_asset("page.js")).replace("\r\n", "\n")
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}'",
        "style-src": "'unsafe-inline'",  # Vega sets the style of what it draws
        "img-src": "data:",  # the empty icon, so that browsers do not ask for one
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _asset(name: str) -> str:
    return files("allpull.report.html").joinpath(name).read_text(encoding="utf-8")
