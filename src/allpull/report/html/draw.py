"""Convert a Vega-Lite specification to an image: the only module that calls vl-convert."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import altair as alt
import vl_convert

from allpull.report import user_cache

PNG_SCALE = 2.0
MAX_BUNDLE_BYTES = 16 << 20
_PATH, _DIGITS = re.compile(r' d="[^"]*"'), re.compile(r"\d+\.\d{3,}")
NO_NETWORK: list[str] = []
"""URLs that a specification may fetch while it is converted: none."""


def svg(spec: Mapping[str, Any]) -> str:
    """The chart as an SVG element, its paths to a hundredth of a pixel: a third of the size of 15 digits."""
    text: str = vl_convert.vegalite_to_svg(dict(spec), vl_version=vega_lite(), allowed_base_urls=NO_NETWORK)
    return _PATH.sub(lambda path: _DIGITS.sub(lambda number: f"{float(number[0]):.2f}", path[0]), text)


def png(spec: Mapping[str, Any]) -> bytes:
    """The chart as a PNG image at twice its size in pixels."""
    image: bytes = vl_convert.vegalite_to_png(
        dict(spec), vl_version=vega_lite(), scale=PNG_SCALE, allowed_base_urls=NO_NETWORK
    )
    return image


def pdf(spec: Mapping[str, Any]) -> bytes:
    """The chart as a one-page PDF document, with its text as text."""
    document: bytes = vl_convert.vegalite_to_pdf(dict(spec), vl_version=vega_lite(), allowed_base_urls=NO_NETWORK)
    return document


@lru_cache(maxsize=4)
def bundle(snippet: str) -> str:
    """``snippet`` preceded by Vega, Vega-Lite and Vega-Embed, as one script that needs no network.

    It is the same for every page, and takes longer to make than all charts: the user's cache keeps it.
    """
    text = f"{version('vl-convert-python')} {vega_lite()} {snippet}"
    name = f"charts-{hashlib.sha256(text.encode()).hexdigest()[:32]}.js"
    script = user_cache.load(name, MAX_BUNDLE_BYTES)
    if script is None:
        script = vl_convert.javascript_bundle(snippet, vl_version=vega_lite()).encode()
        user_cache.store(name, script)
    return script.decode()


@lru_cache(maxsize=1)
def vega_lite() -> str | None:
    """The Vega-Lite version that Altair targets, if vl-convert has it; None: vl-convert's newest."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    return wanted if wanted in vl_convert.get_vegalite_versions() else None
