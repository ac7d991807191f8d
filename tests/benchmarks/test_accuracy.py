"""The proof of accuracy computes scores of its own, and its test says what Welch's test says."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def accuracy() -> Any:
    """The script."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    try:
        return import_module("accuracy")
    finally:
        sys.path[:] = before


@pytest.mark.parametrize(
    ("first", "second", "t", "freedom", "p", "interval"),
    [  # scipy 1.17: ttest_ind(second, first, equal_var=False) and its confidence_interval()
        (
            [0.9871, 0.9902, 0.9893],
            [0.9934, 0.9921, 0.9929],
            *(3.9509322280763435, 2.657484009953054, 0.036006380040969364),
            (0.0005210422205000711, 0.007345624446166618),
        ),
        (
            [0.91, 0.94],
            [0.70, 0.72, 0.715, 0.73],
            *(-12.846153846153879, 1.3636624066971208, 0.021780051534130825),
            (-0.32145616888581696, -0.09604383111418321),
        ),
    ],
)
def test_the_comparison_is_welchs(
    accuracy: Any, first: list[float], second: list[float], t: float, freedom: float, p: float, interval: Any
) -> None:
    found = accuracy.compared("accuracy", {1: first, 4: second}, 4)
    assert (found.base, found.ranks) == (1, 4)
    assert (found.t, found.freedom, found.p) == pytest.approx((t, freedom, p), rel=1e-9)
    assert found.interval == pytest.approx(interval, rel=1e-9)
    assert not found.agree
    assert accuracy.compared("accuracy", {1: first, 2: first[::-1]}, 2).agree


def test_what_never_varies_agrees_with_itself_alone(accuracy: Any) -> None:
    same, other = [0.5, 0.5, 0.5], [0.625, 0.625]
    assert accuracy.compared("accuracy", {1: same, 2: same}, 2).agree
    found = accuracy.compared("accuracy", {1: same, 2: other}, 2)
    assert not found.agree
    assert (found.p, found.interval) == (None, (0.125, 0.125))


def test_a_record_that_differs_is_shown(accuracy: Any) -> None:
    def row(ranks: int, value: float, recorded: float | None) -> dict[str, Any]:
        return {"ranks": ranks, "scores": {"accuracy": value}, "recorded": {"accuracy": recorded}}

    rows = [row(1, 0.5, 0.5), row(2, 0.75, 0.5), row(1, 0.25, None), row(2, 0.5, 0.5)]
    found = accuracy.summary(rows)
    assert found["largest_difference_to_recorded"] == 0.25
    assert [one["mean"] for one in found["scores"]["accuracy"]["by_ranks"]] == [0.375, 0.625]
    assert [one["difference"] for one in found["scores"]["accuracy"]["compared"]] == [0.25]
    assert accuracy.summary(rows[:2])["scores"]["accuracy"]["compared"] == [], "one seed says nothing of the spread"


def test_a_study_goes_on_where_it_was_broken_off(
    accuracy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, list[str]]] = []

    def trained(recipe: str, ranks: int, options: list[str]) -> dict[str, Any]:
        made.append((ranks, options))
        return {"ranks": ranks, "scores": {"accuracy": 0.5}}

    monkeypatch.setattr(accuracy, "trained", trained)
    monkeypatch.setattr(accuracy, "commit", lambda: "a" * 40)
    asked = argparse.Namespace(keep=tmp_path / "kept", set=[])
    first = accuracy.once("digits", 1, 0, asked, ["data.path=a"])
    assert made == [(1, ["data.path=a", "train.seed=0"])]
    assert accuracy.once("digits", 1, 0, asked, ["data.path=b"]) == first  # packs are made anew elsewhere
    assert len(made) == 1
    accuracy.once("digits", 2, 0, asked, [])
    accuracy.once("digits", 1, 1, asked, [])
    accuracy.once("digits", 1, 0, argparse.Namespace(keep=tmp_path / "kept", set=["train.epochs=1"]), [])
    assert len(made) == 4, "another number of ranks, seed or option is another run"
    monkeypatch.setattr(accuracy, "commit", lambda: "b" * 40)
    accuracy.once("digits", 2, 0, asked, [])
    assert len(made) == 5, "and so is that of other sources"
    accuracy.once("digits", 2, 0, argparse.Namespace(keep=None, set=[]), [])
    assert len(made) == 6


@pytest.mark.ranks
def test_the_last_checkpoint_answers_as_was_recorded(accuracy: Any, train_digits: Any) -> None:
    """Batch statistics of two ranks differ until they are averaged, as they are before each evaluation."""
    pytest.importorskip("sklearn")
    run = train_digits(2, "train.epochs=1")
    found = accuracy.examined(run.directory)
    assert found["test_samples"] == 360
    assert found["recorded"]["accuracy"] == run.metric("test_top1")[-1]
    assert found["scores"]["accuracy"] == found["recorded"]["accuracy"]
    assert found["scores"]["accuracy"] > 0.2
