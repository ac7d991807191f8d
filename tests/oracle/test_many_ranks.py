"""Of many ranks some are late by chance: that is no finding, and a slow one costs what the next latest leaves."""

from __future__ import annotations

import pytest
from tests.oracle.conftest import Judge
from tests.oracle.many_ranks import CASES, wrong

FAST = ("healthy, more jitter", "a rank later by 10 sd", "another rank late in each step, more jitter")


def check(judge: Judge, name: str, ranks: int, steps: int) -> None:
    run = CASES[name](ranks, steps)
    judged = judge(run.faulty, run.mended, run.recording)
    assert wrong(run, judged) is None, judged.said()


@pytest.mark.parametrize("name", FAST)
def test_64_ranks(judge: Judge, name: str) -> None:
    check(judge, name, 64, 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_all_cases_with_64_ranks(judge: Judge, name: str) -> None:
    check(judge, name, 64, 40)


@pytest.mark.slow
def test_1024_ranks(judge: Judge) -> None:
    check(judge, "a rank later by 10 sd", 1024, 24)
