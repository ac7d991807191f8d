"""Keep what torch's agent says of itself out of the output of the program that it runs: into a log of its own."""

from __future__ import annotations

import logging
import sys
from typing import Iterator


def speak_into(path: str) -> None:
    """Send Python's own stderr and every logger of this process to the end of ``path``; children are not touched.

    Raises:
        OSError: it cannot be written.
    """
    spoken = (sys.stdout, sys.stderr)
    log = open(path, "a", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  until we end
    for handler in _handlers():
        if isinstance(handler, logging.StreamHandler) and handler.stream in spoken:
            handler.setStream(log)
    sys.stderr = log


def _handlers() -> Iterator[logging.Handler]:
    """Handlers of all loggers: torch gives each part of itself its own."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield from list(logger.handlers)
