"""What ranks say of themselves is believed as far as it makes sense, and nothing that a file holds can do harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.rundir import layout
from allpull.rundir.read.headers import MAX_RANKS, process_records, rank_files, rank_headers, with_recorded_ranks
from allpull.schema.base import tag
from allpull.schema.run import RunRecord

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HEADER = {"rank": 0, "ranks": 1, "host": "a", "pid": 1}


def put(root: Path, rank: int, header: object) -> None:
    (root / "steps").mkdir(exist_ok=True)
    line = header if isinstance(header, bytes) else json.dumps(header).encode() + b"\n"
    (root / layout.steps_file(rank)).write_bytes(line)


def record(launcher: str) -> RunRecord:
    return RunRecord(
        schema=tag("run"), id="x", name="x", kind="run", created_utc="", status="running", command=[], spec={},
        launcher=launcher, ranks=1, versions={"torch": None},
    )  # fmt: skip


@given(st.binary(max_size=300) | st.fixed_dictionaries(dict.fromkeys(HEADER, JSON)))
def test_whatever_a_file_holds_is_a_sensible_rank_or_none(tmp_path_factory, header):
    root = tmp_path_factory.mktemp("run")
    put(root, 0, header)
    for rank in rank_headers(root):
        assert (rank.rank, type(rank.host)) == (0, str)
        assert 1 <= rank.ranks <= MAX_RANKS
    assert rank_files(root) == 1


@pytest.mark.parametrize(
    "header", [{**HEADER, "rank": 1}, {**HEADER, "ranks": 10**7}, b"[" * 100_000, b'{"rank": 0' + b" " * 10**6, b""]
)
def test_headers_that_cannot_be_are_passed_over(tmp_path, header):
    put(tmp_path, 0, header)
    assert rank_headers(tmp_path) == []


def test_a_link_that_leaves_the_directory_is_not_followed(tmp_path):
    root = tmp_path / "run"
    (root / "steps").mkdir(parents=True)
    (tmp_path / "outside").write_text(json.dumps(HEADER))
    (root / layout.steps_file(0)).symlink_to(tmp_path / "outside")
    (root / "job").mkdir()
    (root / layout.PROCESSES).symlink_to(tmp_path)
    assert rank_headers(root) == []
    assert process_records(root) == []


@pytest.mark.parametrize(("launcher", "ranks"), [("command", 4), ("script", 4), ("local", 1)])
def test_ranks_are_counted_where_allpull_started_none(tmp_path, launcher, ranks):
    """Rank 2 has shown itself, and says that there are four."""
    put(tmp_path, 2, {**HEADER, "rank": 2, "ranks": 4, "host": "b"})
    found = with_recorded_ranks(record(launcher), tmp_path)
    assert found.ranks == ranks
    assert found.hosts == (["b"] if ranks == 4 else [])


def test_a_rank_beyond_its_own_world_counts(tmp_path):
    """Two trainings were put together: every record can still be read."""
    put(tmp_path, 0, HEADER)
    put(tmp_path, 3, {**HEADER, "rank": 3})
    assert with_recorded_ranks(record("command"), tmp_path).ranks == 4


@pytest.mark.parametrize(("launcher", "command"), [("script", ["python", "train.py", "--lr", "1"]), ("command", [])])
def test_a_script_with_our_lines_has_the_command_of_its_first_rank(tmp_path, launcher, command):
    """Its own is `allpull env`, which says nothing of the program; that of `allpull run` is the user's."""
    (tmp_path / layout.PROCESSES).mkdir(parents=True)
    for rank in (3, 0, None):
        put(tmp_path, rank or 0, {**HEADER, "ranks": 4, "rank": rank or 0})
        argv = ["python", "train.py", "--lr", "1"] if rank == 0 else ["python", "prepare.py"]
        told = {"pid": 7, "host": "a", "rank": rank, "argv": argv}
        (tmp_path / layout.PROCESSES / f"a-{rank}.json").write_text(json.dumps(told))
    assert with_recorded_ranks(record(launcher), tmp_path).command == command
