"""Which Python this is, and the versions of what a result may depend on. Standard library only."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Dict, Optional

PACKAGES = ("torch", "numpy", "polars", "pydantic", "psutil")


def versions() -> Dict[str, Optional[str]]:
    """Versions of Python and of the packages, without importing them; None: not installed."""
    return {"python": platform.python_version(), **{package: installed(package) for package in PACKAGES}}


def installed(package: str) -> Optional[str]:
    """The version of ``package`` here, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
