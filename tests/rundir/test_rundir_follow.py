"""Following a growing file: whole lines, once each, also when another attempt begins the file anew."""

from __future__ import annotations

from allpull.rundir.follow import Tail


def test_each_whole_line_is_told_once(tmp_path):
    path = tmp_path / "file"
    tail = Tail(path)
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
    tail = Tail(path)
    assert len(list(tail.new())) == 2
    path.rename(tmp_path / "aside")
    assert list(tail.new()) == []
    path.write_text('{"a": 3}\n')
    assert [line["a"] for line in tail.new()] == [3]
