"""PowerSGD goes on from a checkpoint with all that it remembers, on two real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(results_of_two_ranks: Callable[[str], list[Found]]) -> list[Found]:
    """What each of two ranks found out."""
    return results_of_two_ranks("powersgd_ranks.py")


def test_what_goes_on_is_bit_for_bit_what_would_have_been(found: list[Found]) -> None:
    """Saved among the uncompressed steps, at their end and later; and again after one step, in buckets of its own."""
    for told in found:
        differences, remarks = told["gone_on"]
        assert len(differences) == 10
        assert set(differences.values()) == {0}
        assert remarks == []


def test_without_its_memory_it_would_not_be_and_that_is_said(found: list[Found]) -> None:
    """From a checkpoint of the second format, which has none; with none to take; and with another approximation."""
    for told in found:
        assert told["without"][0] > 1e-4
    assert found[0]["without"][1] == [
        "parallel.compression: the checkpoint has no PowerSGD state: it starts with its uncompressed steps",
        "parallel.compression: PowerSGD's error feedback in the checkpoint is dropped",
    ]
    assert found[1]["without"][1] == []


def test_on_other_ranks_all_that_is_owed_to_the_weights_stays_owed(found: list[Found]) -> None:
    """What is sent is a mean over ranks: so is what is still to be sent."""
    for told in found:
        apart, largest, steps = told["spread"][0]
        assert apart < 1e-6 < 1e-3 < largest
        assert steps == 6
    said = "parallel.compression: PowerSGD's error feedback of 3 ranks is spread evenly over 2"
    assert [told["spread"][1] for told in found] == [[said], []]


def test_a_checkpoint_has_for_each_rank_once_what_was_left_out(found: list[Found]) -> None:
    ranks, remarks = found[0]["stored_once"]
    assert len(ranks) == 2
    for one in ranks:
        assert one.pop("steps") == 1
        assert sum(size for name, size in one.items() if name.startswith("left_out/")) == 3106  # the parameters
        bases = {name: size for name, size in one.items() if name.startswith("basis/")}
        assert bases["basis/first.weight"] == 2 * 3 * 3  # Q of a matrix of 24 rows
        assert not any(name.endswith("bias") for name in bases)
    assert remarks == []
