"""Fixtures for trainer tests: programs on two real ranks, and the remarks of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allpull import marks

LIMIT_S = 240
# Without it oneMKL's products depend, in the last bit, on where in memory their factors lie.
REPRODUCIBLE = {"MKL_CBWR": "COMPATIBLE"}


@pytest.fixture(scope="session")
def results_of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """``results_of_two_ranks(program)`` runs a file of parallel/ on two ranks and returns the results of each."""

    def run(program: str) -> list[dict[str, Any]]:
        path = Path(__file__).parent / "parallel" / program
        folder = tmp_path_factory.mktemp(path.stem)
        environment = {**os.environ, **REPRODUCIBLE}
        with (folder / "output").open("w+") as output:
            ranks = [
                subprocess.Popen(
                    [sys.executable, str(path), str(folder), str(rank)], stdout=output, stderr=output, env=environment
                )
                for rank in range(2)
            ]
            try:
                codes = [rank.wait(LIMIT_S) for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
            output.seek(0)
            assert codes == [0, 0], output.read()[-4000:]
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]

    return run


class Remarks:
    """Collects remarks and ignores other marks."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def metric(self, *_: object) -> None:
        """Ignored."""


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """The remarks made while the test runs."""
    listener = Remarks()
    before = marks.listen(listener)  # type: ignore[arg-type]  # two words of its six
    yield listener.remarks
    marks.listen(before)
