"""Colours with the same meaning on every chart, distinguishable with any colour vision.

Okabe and Ito (2008), "Color Universal Design", for the eight most important; Paul Tol's muted scheme for two
more. A test simulates protanopia, deuteranopia and tritanopia and measures the remaining contrast.
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
    """Names of phases, each once, in stacking order; names not in ``PHASES`` come last.

    >>> in_order(["augment", "wait", "input", "wait"])
    ['input', 'wait', 'augment']
    """
    given = dict.fromkeys(names)
    return [*(name for name in PHASES if name in given), *(name for name in given if name not in PHASES)]


RUNS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5F6B76")
"""Colours of the lines of runs; a chart has at most this many lines."""

QUIET = "#7A858F"
"""For anything not measured, such as the ideal line."""
