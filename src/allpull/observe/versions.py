"""The versions of Python and of the packages that a result may depend on. Standard library only."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Dict, Optional

PACKAGES = ("torch", "numpy", "polars", "pydantic", "psutil")


def versions() -> Dict[str, Optional[str]]:
    """Versions of Python and of the packages, without importing them; None: not installed.

    ``torch_cpu`` is present where torch is loaded: see ``vector_kernels``.
    """
    versions = {"python": platform.python_version(), **{package: installed(package) for package in PACKAGES}}
    kernels = vector_kernels()
    return versions if kernels is None else {**versions, "torch_cpu": kernels}


def vector_kernels() -> Optional[str]:
    """The vector instructions that torch computes with here, such as AVX512, or DEFAULT for none; None: not known."""
    torch = sys.modules.get("torch")
    try:
        return None if torch is None else str(torch.backends.cpu.get_cpu_capability())
    except (AttributeError, RuntimeError, TypeError):  # partly imported, or a build without this function
        return None


def installed(package: str) -> Optional[str]:
    """The version of ``package`` here, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
