"""Scores, averages and checkpoints of two real ranks, against one rank; ``gather_ranks.py`` finds the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
EXACT = 1e-12  # of weights around 1 in float64, after some steps

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(results_of_two_ranks: Callable[[str], list[Found]]) -> list[Found]:
    """What each of two ranks found out."""
    return results_of_two_ranks("gather_ranks.py")


def test_rows_of_all_ranks_come_in_their_order_however_many_each_has(found: list[Found]) -> None:
    for told in found:
        many, few = told["gathered"]["rows"]
        assert many == [[0, 1], [2, 3], [10, 11], [12, 13], [14, 15], [16, 17], [18, 19]]
        assert few == [[10, 11], [12, 13]]  # rank 0 has none
        assert told["gathered"]["least"] == 4


def test_named_tensors_of_any_type_reach_rank_0_alone(found: list[Found]) -> None:
    first, second = found[0]["gathered"]["named"]
    assert first == {"a": [[0.0] * 2] * 3, "b": 0, "c": [True, False], "d": [], "e": [1.5]}
    assert second == {"a": [[1.0] * 2] * 3, "b": 1, "c": [True, True], "d": [], "e": [1.5]}
    assert found[0]["gathered"]["types"] == [
        f"torch.{name}" for name in ("float32", "int64", "bool", "float32", "bfloat16")
    ]
    assert found[1]["gathered"]["named"] == []


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("way", ["parallel", "serial", "fsdp", "fsdp serial"])
def test_scores_do_not_depend_on_the_number_of_ranks_nor_on_the_way(
    found: list[Found], way: str, multi_label: bool
) -> None:
    """All but the sum of the loss to the last digit: also the mean average precision, which needs all answers."""
    for told in found:
        alone, here = (dict(told["scored"][f"{name} {multi_label}"]) for name in ("alone", way))
        assert here.pop("test_loss") == pytest.approx(alone.pop("test_loss"), rel=1e-6)
        for marked in ("phases", "eval"):
            here.pop(marked), alone.pop(marked)
        assert here == alone
        assert here["samples"] == 57
        assert len(here) == (4 if multi_label else 3)
    first, second = (dict(told["scored"][f"{way} {multi_label}"]) for told in found)
    assert [first[name] for name in first if "test" in name] == [second[name] for name in second if "test" in name]


def test_who_waits_does_not_evaluate(found: list[Found]) -> None:
    """So that `allpull explain` sees sequential work where it is."""
    for way, phases in (("parallel", [1, 1]), ("serial", [1, 0]), ("fsdp", [1, 1]), ("fsdp serial", [1, 0])):
        assert [len(told["scored"][f"{way} False"]["phases"]) for told in found] == phases
        assert [told["scored"][f"{way} False"]["eval"] for told in found] == phases


def test_a_rank_without_a_test_sample_takes_part(found: list[Found]) -> None:
    for told in found:
        assert told["scored"]["few False"]["samples"] == told["scored"]["few True"]["samples"] == 1


def test_optimizers_and_averages_are_those_of_one_rank_also_where_weights_are_shared(found: list[Found]) -> None:
    assert len(found[0]["as_one_rank"]) == 6
    assert max(found[0]["as_one_rank"].values()) < EXACT


def test_training_goes_on_with_its_own_weights_after_the_average_was_evaluated(found: list[Found]) -> None:
    losses = set()
    for told in found:
        for way in told["trained_after_evaluation"].values():
            assert way["far"] == 0
            assert way["averaged"] > way["own"] + 0.01
            losses.add((round(way["averaged"], 9), round(way["own"], 9)))
    assert len(losses) == 1


def test_any_strategy_goes_on_from_the_checkpoint_of_any(found: list[Found]) -> None:
    ways = found[0]["handed_over"]
    assert len(ways) == 9
    assert max(ways.values()) < EXACT


def test_what_is_each_ranks_own_comes_back_and_one_rank_gets_the_mean(found: list[Found]) -> None:
    assert found[0]["own_of_ranks"]["drawn"] != found[1]["own_of_ranks"]["drawn"]
    for told in found:
        assert told["own_of_ranks"]["came_back"]
        assert told["own_of_ranks"]["differ"]
        assert told["own_of_ranks"]["far_from_mean"] < EXACT


def test_each_rank_drops_units_of_its_own_also_after_going_on_from_one_rank(found: list[Found]) -> None:
    """The weights begin alike, by the same seed; what is dropped is repeated when the training is."""
    first, second = (told["dropped"] for told in found)
    assert first["head"] == second["head"]
    drawn = {tuple(told[when]) for told in (first, second) for when in ("begun", "gone on")}
    assert len(drawn) == 4
    for told in (first, second):
        assert told["gone on"] == told["gone on again"]


def test_ranks_go_on_from_the_newest_checkpoint_that_all_of_them_see(found: list[Found]) -> None:
    """Rank 0 has a torn 20 and a 30, rank 1 has not got the 30 yet: else each would go on from another step."""
    assert [told["seen_differently"]["agreed"] for told in found] == [10, 10]
    assert found[0]["seen_differently"]["error"].endswith("another rank cannot read one there")
    assert found[1]["seen_differently"]["error"].endswith("no checkpoint there")
