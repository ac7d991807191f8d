"""FSDP2 in half precision on two real ranks: half the bytes, and not a bit of the training is another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
PARAMETERS = 5142  # of the network; every shape divides by two ranks
OF_ROOT = 374  # norms, first convolution, head
SHORT = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(results_of_two_ranks: Callable[[str], list[Found]]) -> list[Found]:
    """What each of two ranks found out."""
    return results_of_two_ranks("fsdp_ranks.py")


def test_a_training_in_half_precision_is_that_of_ddp_bit_for_bit(found: list[Found]) -> None:
    """LossCurve, evaluations and weights: with batch and group norms, accumulated, and with fp16's loss scaling."""
    for told in found:
        assert len(told["mixed"]) == 9
        for name, facts in told["mixed"].items():
            case = name.split()[:3]
            assert facts["losses"] == told["mixed"][" ".join((*case, "ddp"))]["losses"], name
            assert facts["far"] == 0, name
            assert set(facts["types"]) <= {"torch.float32", "torch.int64"}


def test_weights_travel_in_half_precision_and_gradients_and_norms_whole(found: list[Found]) -> None:
    """Of what blocks hold each rank sends its half in forward, and again in backward; the root's it sends once."""
    for told in found:
        for name, facts in told["mixed"].items():
            precision, _, parts, strategy = name.split(" ", 3)
            if strategy == "ddp":
                assert facts["sent"] == {}
                continue
            times = int(parts) * (1 if strategy == "fsdp kept" else 2)
            assert facts["sent"] == {
                "gathered torch.float32": int(parts) * OF_ROOT / 2,
                f"gathered {SHORT[precision]}": times * (PARAMETERS - OF_ROOT) / 2,
                "reduced torch.float32": PARAMETERS,  # with the last part alone
            }


def test_what_is_not_to_be_rounded_travels_as_it_is_and_trains_the_same(found: list[Found]) -> None:
    for told in found:
        half, whole = told["mixed"]["bf16 batch 1 fsdp"], told["as_they_are"]
        assert whole["losses"] == half["losses"]
        sent_half = half["sent"]["gathered torch.float32"] * 4 + half["sent"]["gathered torch.bfloat16"] * 2
        blocks_and_root = whole["sent"]["gathered torch.float32"] * 4
        assert 0.5 < sent_half / blocks_and_root < 0.56  # what is above one half is the root's
