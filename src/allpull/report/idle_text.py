"""The idle share of accelerators as a sentence, with its source."""

from __future__ import annotations

from allpull.report.wording import ABSENT, percent
from allpull.schema.idle import AcceleratorIdle

AT_LEAST = {"device times": "at least ", "profiler windows": "about ", "GPU utilisation": "about "}
BASES = {
    "device times": "by the times of steps on the device",
    "profiler windows": "by the kernels of a few steps in profiler windows",
    "GPU utilisation": "by the driver's samples of GPU utilisation",
}
WHOLE = 0.95  # of the epochs' time: a smaller part is stated


def extremes(idle: AcceleratorIdle) -> str:
    """The least and the most of an epoch; a dash where fewer than two epochs have a share."""
    shares = [one.share for one in idle.epochs if one.share is not None]
    return f"{percent(min(shares))} to {percent(max(shares))}" if len(shares) > 1 else ABSENT


def sentence(idle: AcceleratorIdle | None) -> str:
    """How much of an epoch accelerators were idle; empty where that is not known.

    >>> sentence(AcceleratorIdle(share=0.5, source="GPU utilisation", known=1.0, epochs=[], reason=None))
    "Accelerators are idle about 50.0 % of an epoch, by the driver's samples of GPU utilisation."
    """
    if idle is None or idle.share is None or idle.source is None:
        return ""
    share = f"{AT_LEAST[idle.source]}{percent(idle.share)}"
    windows = idle.source == "profiler windows"
    part = "" if windows or idle.known is None or idle.known >= WHOLE else f", known of {percent(idle.known)} of it"
    return f"Accelerators are idle {share} of {'the time' if windows else 'an epoch'}, {BASES[idle.source]}{part}."
