"""What the record of a user's command says of ranks that it starts itself."""

from __future__ import annotations

import pytest
from tests.analyse.test_programs import record

from allpull.launch.command_record import of_program


@pytest.mark.parametrize(("variable", "threads"), [("4", 4), ("4,2", 4), ("", None), ("0", None), ("many", None)])
def test_threads_of_a_rank_are_those_of_its_environment(variable: str, threads: int | None) -> None:
    recorded = of_program(record("python", launcher="command"), ["python", "absent.py"], {"OMP_NUM_THREADS": variable})
    assert recorded.threads_per_rank == threads
