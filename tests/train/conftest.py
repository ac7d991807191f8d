"""Two real ranks that check something together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allpull import marks

LIMIT_S = 240


@pytest.fixture(scope="session")
def found_by_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """``found_by_two_ranks(program)`` runs a file of parallel/ as two ranks; what each of them found out."""

    def run(program: str) -> list[dict[str, Any]]:
        path = Path(__file__).parent / "parallel" / program
        folder = tmp_path_factory.mktemp(path.stem)
        with (folder / "said").open("w+") as said:
            started = [
                subprocess.Popen([sys.executable, str(path), str(folder), str(rank)], stdout=said, stderr=said)
                for rank in range(2)
            ]
            try:
                codes = [rank.wait(LIMIT_S) for rank in started]
            finally:
                for rank in started:
                    rank.kill()
            said.seek(0)
            assert codes == [0, 0], said.read()[-4000:]
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]

    return run


class Heard:
    """Hears what is remarked, and lets all else be."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def metric(self, *_: object) -> None:
        """Of no interest."""


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What is remarked to whoever reads the run, while the test runs."""
    listener = Heard()
    before = marks.listen(listener)  # type: ignore[arg-type]  # two words of its six
    yield listener.remarks
    marks.listen(before)
