"""A run directory for each case, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.oracle import judged
from tests.oracle.judged import Judged
from tests.oracle.records import Recording
from tests.oracle.training import Training

Judge = Callable[..., Judged]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """``judge(faulty, mended, recording)``: what explain says of ``faulty``, and how much faster ``mended`` is."""

    def judge(faulty: Training, mended: Training | None = None, recording: Recording | None = None) -> Judged:
        return judged.judge(tmp_path, faulty, mended, recording)

    return judge
