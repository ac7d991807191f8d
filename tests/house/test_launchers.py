"""The comparison of launchers sees a difference of one bit, and says who differs."""

from __future__ import annotations

import doctest
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from allpull.rundir.read.run import read_run

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def launchers(root: Path) -> Any:
    """The benchmark."""
    before = list(sys.path)
    sys.path.insert(0, str(root / "benchmarks"))
    try:
        return import_module("launchers")
    finally:
        sys.path[:] = before


def state(weight: float, momentum: float = 0.0) -> dict[str, Any]:
    return {"model": {"w": torch.tensor([weight])}, "optimizer": {"state": {0: {"m": torch.tensor([momentum])}}}}


def test_one_bit_in_any_part_of_the_state_changes_its_digest(launchers: Any) -> None:
    nearest = 1.0 + 2.0**-23  # the float32 after 1
    digests = [launchers.digest(one) for one in (state(1.0), state(nearest), state(1.0, 2.0**-149), state(1.0))]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def test_the_same_numbers_in_other_places_are_another_state(launchers: Any) -> None:
    flat, square = torch.zeros(4), torch.zeros(2, 2)
    different = [flat, square, flat.double(), [flat], [[flat]], {"a": flat}, {"b": flat}, [flat, flat], 0.0, -0.0, None]
    assert len({launchers.digest(one) for one in different}) == len(different)


def test_agreement_names_who_differs(launchers: Any) -> None:
    rows = [dict.fromkeys(launchers.COMPARED, 1) | {"launcher": name} for name in ("a", "b", "c")]
    rows[1]["test_loss"] = 1 + 2**-52
    found = launchers.agreement(rows)
    assert found.pop("test_loss") == [["a", "c"], ["b"]]
    assert list(found.values()) == [[["a", "b", "c"]]] * (len(launchers.COMPARED) - 1)


def test_start_up_is_on_the_clock_that_creation_was_read_from(launchers: Any, kept_runs: list[Path]) -> None:
    """A real run of an old version; the whole second of its creation bounds the answer."""
    run = read_run(kept_runs[0])
    found = launchers.startup_s(run)
    assert found["high"] - found["low"] == pytest.approx(1)
    assert found["low"] < found["value"] < found["high"]
    assert 0 < found["high"] < 600  # not the distance between two clocks


def test_its_examples_are_right(launchers: Any) -> None:
    found = doctest.testmod(launchers)
    assert (found.failed, found.attempted > 0) == (0, True)
