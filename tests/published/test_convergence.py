"""The published epochs: editions in order, points as printed, bad tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.errors import BadInput, UnknownName
from allpull.published.convergence import editions, reference_points

HEADER = "source,rcp,global_batch,all_epochs\n"


def test_editions() -> None:
    assert editions() == ["1.0.0", "1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0"]


def test_points_of_the_latest() -> None:
    points = reference_points()
    assert points == reference_points("4.0.0")
    assert len(points) == 10
    assert (points[0].global_batch, len(points[0].epochs), points[0].mean_epochs) == (1632, 17, 35.0)
    assert points[-1].mean_epochs == pytest.approx(85.857, abs=0.001)
    assert sum(len(reference_points(edition)) for edition in editions()) == 68


def test_no_such_edition() -> None:
    with pytest.raises(UnknownName, match=r"4\.0\.0"):
        reference_points("0.6.0")


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n", HEADER, HEADER + "x training_1.0.0/,r,zero,3\n", HEADER + "x training_1.0.0/,r,10,3//4\n"],
)
def test_no_table(tmp_path: Path, text: str) -> None:
    table = tmp_path / "epochs.csv"
    table.write_text(text, "utf-8")
    with pytest.raises(BadInput, match=r"epochs\.csv"):
        reference_points(table=table)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        reference_points(table=tmp_path / "nowhere.csv")
