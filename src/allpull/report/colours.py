"""Colours that mean the same on every chart, and that people with any colour vision can tell apart.

Okabe and Ito (2008), "Color Universal Design", for the eight that matter most; Paul Tol's muted scheme for two
more. A test simulates protanopia, deuteranopia and tritanopia and measures how far apart they stay.
"""

from __future__ import annotations

from collections.abc import Iterable

PHASES: dict[str, str] = {
    "input": "#E69F00",
    "copy": "#F2DC5D",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "wait": "#D55E00",
    "transfer": "#CC79A7",
    "optimizer": "#009E73",
    "evaluation": "#332288",
    "checkpoint": "#882255",
    "host": "#5F6B76",
    "other": "#C3CAD1",
}
"""Phases of a step in the order they are stacked (DESIGN §4): compute is blue, lost time warm or grey."""


def in_order(names: Iterable[str]) -> list[str]:
    """Names of phases, each once, as they are stacked; names that are none of ``PHASES`` come last.

    >>> in_order(["augment", "wait", "input", "wait"])
    ['input', 'wait', 'augment']
    """
    given = dict.fromkeys(names)
    return [*(name for name in PHASES if name in given), *(name for name in given if name not in PHASES)]


RUNS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5F6B76")
"""Lines of runs; there are no more lines in one chart than colours here."""

QUIET = "#7A858F"
"""What is not a measurement, such as the ideal line."""
