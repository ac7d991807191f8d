"""The frames that a hook was called from: what torch's hooks are not told, such as whose step is under way."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Iterator, Optional


def callers() -> Iterator[FrameType]:
    """The frame that asks, and those that it was called from, the nearest first."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
