"""Strategies on two real ranks, against one rank with all samples; ``strategy_ranks.py`` finds the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
EXACT = 1e-12  # of weights around 1 in float64, after some steps
NORMED = 1e-10  # the same, with batch statistics in between

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(results_of_two_ranks: Callable[[str], list[Found]]) -> list[Found]:
    """What each of two ranks found out."""
    return results_of_two_ranks("strategy_ranks.py")


def each(found: list[Found], check: str) -> Iterator[Any]:
    """What both ranks found in ``check``."""
    return (told[check] for told in found)


def test_every_strategy_trains_as_one_rank_does_and_begins_as_rank_0(found: list[Found]) -> None:
    differences = found[0]["as_one_rank"]
    assert len(differences) == 9
    assert max(differences.values()) < EXACT
    assert set(found[1]["as_one_rank"].values()) == {0}  # only rank 0 holds the whole state


def test_exchanging_after_backward_changes_no_bit(found: list[Found]) -> None:
    assert found[0]["later_to_the_bit"] == 0


def test_four_parts_of_a_batch_are_as_the_whole(found: list[Found]) -> None:
    differences = found[0]["accumulated"]
    assert len(differences) == 6
    assert max(differences.values()) < EXACT


def test_gradients_are_exchanged_with_the_last_part_only(found: list[Found]) -> None:
    for told in each(found, "exchanged_once"):
        for after_first, after_last in told.values():
            assert after_first > 0.01
            assert after_last == 0


def test_the_norm_that_is_clipped_is_that_of_all_gradients_of_all_ranks(found: list[Found]) -> None:
    for told in each(found, "clipped"):
        reference = told.pop("reference")
        for norm, apart, dimensions, afterwards in told.values():
            assert norm == pytest.approx(reference, rel=1e-12)
            assert (apart, dimensions) == (0, 0)
            assert afterwards == pytest.approx(0.5, rel=1e-5)  # torch adds 1e-6 to the norm


def test_gathered_weights_are_evaluated_without_collectives(found: list[Found]) -> None:
    """Rank 1 runs forward three times as often; else the ranks would wait for each other for ever."""
    for outputs, weights in each(found, "evaluated"):
        assert outputs < EXACT
        assert weights < EXACT


def test_what_one_strategy_saved_another_one_loads(found: list[Found]) -> None:
    """Momentum included; and training on does not change what was saved."""
    for told in each(found, "handed_over"):
        assert set(told) == {"default to fsdp", "fsdp to default", "fsdp to alone", "alone to fsdp"}
        for difference, moved in told.values():
            assert difference < EXACT
            assert moved == 0


def test_a_training_goes_on_exactly_after_a_backward_that_broke_off(found: list[Found]) -> None:
    """As the recording of a step may; DistributedDataParallel would wait for the rest of its buckets."""
    assert len(found[0]["broken_off"]) == 4
    assert max(found[0]["broken_off"].values()) < EXACT


def test_a_backward_that_broke_off_on_one_rank_alone_is_an_error_and_no_hang(found: list[Found]) -> None:
    assert list(each(found, "one_broke_off")) == ["", "the step was captured on some ranks, but not on rank 1"]


def test_a_state_of_another_network_is_refused(found: list[Found]) -> None:
    for told in each(found, "of_another_network"):
        assert len(told) == 4
        for of_model, of_optimizer in (told[:2], told[2:]):
            assert "size mismatch for head.weight" in of_model
            assert of_optimizer == "momentum_buffer of parameter 0 is [2], not [4, 1, 3, 3]"


def test_batch_statistics_stay_each_ranks_own_unless_they_are_broadcast(found: list[Found]) -> None:
    counted = [{name: count for name, (count, _) in told.items()} for told in each(found, "own_statistics")]
    assert counted == [{"default": 1, "fsdp": 1, "broadcast": 1}, {"default": 101, "fsdp": 101, "broadcast": 1}]
    assert all(apart > 0 for told in each(found, "own_statistics") for _, apart in told.values())


def test_compressed_gradients_are_as_exact_as_their_type_and_the_same_everywhere(found: list[Found]) -> None:
    """Half a unit in the last place of fp16 is 2⁻¹¹ of a number, of bf16 2⁻⁸; rounded, added up and rounded again."""
    for told in each(found, "compressed"):
        assert set(told) == {"fp16 True", "bf16 True", "fp16 False", "bf16 False"}
        for name, (difference, apart) in told.items():
            assert apart == 0
            assert 0 < difference < 2 * (2**-11 if name.startswith("fp16") else 2**-8)


def test_powersgd_sends_a_matrix_of_its_rank_exactly(found: list[Found]) -> None:
    """Two ranks with one sample each have a mean gradient of rank 2; compression begins with the third step."""
    for told in each(found, "powersgd"):
        before, still_before, thin, apart = told["1"]
        assert (before, still_before, apart) == (0, 0, 0)
        assert thin > 0.1
        assert told["2"][2] < 1e-5  # 1e-8 is added to norms
        assert told["2"][3] == 0
        assert told["network"] == [0, True]
        assert told["many buckets"] == 0  # and that it came to its end: Gloo has two threads


def test_a_norm_over_ranks_is_that_of_one_rank_with_all_samples(found: list[Found]) -> None:
    """Output, gradients, running statistics; also on uneven shares, and beside a rank whose samples do not count."""
    for told in each(found, "norm_layer"):
        assert set(told) == {"even", "uneven", "borrowed"}
        assert max(told.values()) < NORMED


def test_a_network_with_statistics_of_all_ranks_trains_as_on_one_rank(found: list[Found]) -> None:
    differences = found[0]["norm_network"]
    own_statistics, _ = differences.pop("each its own")
    assert own_statistics > 0.01
    assert [layers for _, layers in differences.values()] == [9, 9, 9]
    assert max(difference for difference, _ in differences.values()) < NORMED


def test_a_norm_under_autocast_keeps_its_statistics_in_single_precision(found: list[Found]) -> None:
    assert list(each(found, "norm_mixed")) == 2 * [["torch.bfloat16", "torch.float32", True, 0.0]]
