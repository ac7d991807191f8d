"""Following a growing file: whole lines, once each, also when another attempt begins the file anew."""

from __future__ import annotations

import json

import pytest

from allpull.rundir import layout
from allpull.rundir.live.tail import Follower, Tail


def test_each_whole_line_is_told_once(tmp_path):
    path = tmp_path / "file"
    tail = Tail(tmp_path, "file")
    assert list(tail.new()) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert [line["a"] for line in tail.new()] == [1, 2]
    with path.open("a") as file:
        file.write(': 3}\nnot json\n[4]\n{"a": 5}\n')
    assert [line["a"] for line in tail.new()] == [3, 5]
    assert list(tail.new()) == []


def test_a_file_that_took_the_place_of_another_is_read_from_its_start(tmp_path):
    path = tmp_path / "file"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    tail = Tail(tmp_path, "file")
    assert len(list(tail.new())) == 2
    path.rename(tmp_path / "aside")
    assert list(tail.new()) == []
    path.write_text('{"a": 3}\n')
    assert [line["a"] for line in tail.new()] == [3]


@pytest.mark.parametrize(
    ("metric", "words"),
    [("test_top1", "test accuracy 97.5%, loss 0.250"), ("test_map", "test mAP 97.5%, loss 0.250")],
)
def test_an_evaluated_epoch_is_told_in_the_words_of_its_labels(tmp_path, metric, words):
    events = tmp_path / layout.events_file(0)
    events.parent.mkdir()
    told = [("train_loss", 0.25), (metric, 0.975), (["test_map"], 1.0), ("test_loss", 0.3), (metric, None)]
    lines = [json.dumps({"kind": "metric", "name": name, "value": value, "epoch": 3}) for name, value in told]
    events.write_text("\n".join(lines) + "\n")
    assert list(Follower(tmp_path).epochs()) == [(3, words)]
