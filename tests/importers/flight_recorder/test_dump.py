"""Dumps of the flight recorder: arrivals and numbers of collectives, as JSON or pickles, alone and beside traces."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.importers.made import BASE_NS, MS, Job, document, gloo_events, play, save

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.importers.assemble import import_traces
from allpull.importers.kineto.calls import Call, Use
from allpull.importers.kineto.steps import by_collectives, pattern_of, token_of
from allpull.importers.part import read_part, with_numbers
from allpull.importers.sources import find
from allpull.rundir.read.run import read_run
from allpull.schema.gap import texts

STEPS = 8
BUCKETS = (900, 500, 500)  # elements; the last two alike


def entry(seq: int, name: str, sizes: Sequence[int], created_ns: int, **more: Any) -> dict[str, Any]:
    """One entry, as torch 2.13 writes it."""
    return {
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": created_ns,
        "input_sizes": [list(sizes)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(sizes)],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        "frames": [{"name": "f", "filename": "train.py", "line": 3}],
        **more,
    }


def dump(rank: int, *, steps: int = STEPS, skip: int = 0) -> dict[str, Any]:
    """A ring buffer: of each step a broadcast, three buckets and the mean of the loss; ``skip`` entries are lost."""
    entries, seq = [], 0
    for step in range(steps):
        begin_ns = BASE_NS + step * 100 * MS + rank * 2 * MS
        calls = [("nccl:broadcast", [7], 20), *(("nccl:all_reduce", [size], 50 + i) for i, size in enumerate(BUCKETS))]
        for name, sizes, after_ms in [*calls, ("nccl:all_reduce", [1], 70)]:
            seq += 1
            entries.append(entry(seq, name, sizes, begin_ns + after_ms * MS))
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries[skip:]}


def write(folder: Path, rank: int, what: dict[str, Any], *, as_json: bool) -> None:
    folder.mkdir(exist_ok=True)
    if as_json:
        (folder / f"fr_trace_rank_{rank}.json").write_text(json.dumps(what))
    else:
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(what, protocol=2))


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "pickle"])
def test_dumps_alone_give_steps_and_arrivals_and_say_what_is_missing(tmp_path: Path, as_json: bool) -> None:
    for rank in range(2):
        write(tmp_path / "dumps", rank, dump(rank), as_json=as_json)
    done = import_traces([tmp_path / "dumps"], out=tmp_path / "runs")
    run = read_run(done.directory)
    assert done.unmatched is None
    assert {header.boundary for header in run.headers.values()} == {"collectives"}
    assert run.steps.filter(rank=0).height == STEPS - 1  # the last one has no end
    lengths = (run.steps["end_ns"] - run.steps["begin_ns"]).unique().to_list()
    assert lengths == [100 * MS]
    assert run.collectives["end_ns"].null_count() == run.collectives.height == 2 * 5 * (STEPS - 1)
    assert any("not when they began or ended" in gap for gap in texts(run.gaps))
    found = metrics(AlignedRun(run))
    assert found.phases["wait"] is None
    assert found.phases["forward"] is None
    assert found.collectives is not None
    assert {(use.op, use.size_bytes, use.unmatched) for use in found.collectives} == {
        ("broadcast", 28, 0),
        ("all_reduce", 3600, 0),
        ("all_reduce", 2000, 0),
        ("all_reduce", 4, 0),
    }
    assert not AlignedRun(run).clock.compares  # nothing in them tells how the clocks of their hosts stand


def test_dumps_that_lost_different_entries_are_set_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "dumps", 0, dump(0), as_json=True)
    write(tmp_path / "dumps", 1, dump(1, skip=12), as_json=True)
    run = read_run(import_traces([tmp_path / "dumps"], out=tmp_path / "runs").directory)
    steps = {rank: run.steps.filter(rank=rank)["step"].to_list() for rank in range(2)}
    assert steps == {0: list(range(7)), 1: list(range(3, 7))}
    seqs = run.collectives.filter(step=5).sort("seq").group_by("rank").agg("seq")["seq"].to_list()
    assert seqs[0] == seqs[1]


def test_a_dump_beside_a_trace_numbers_its_collectives(tmp_path: Path) -> None:
    """Gloo's traces know no numbers; with them, a call that one rank makes too many shifts no other."""
    job = Job(ranks=2, steps=5)
    folder = tmp_path / "both"
    folder.mkdir()
    for rank in range(2):
        events = gloo_events(job, rank)
        entries = []
        for truth in (of_step[rank] for of_step in play(job)):
            for bucket, ready in enumerate(truth.ready):
                created_ns = BASE_NS + round((10_000 + ready) * MS) + 5000
                entries.append(entry(len(entries) + 11, "gloo:all_reduce", [1000 + bucket], created_ns))
        save(folder / f"rank{rank}.json", document(job, rank, events))
        write(folder, rank, {"version": "2.10", "pg_config": {}, "entries": entries}, as_json=False)
    done = import_traces([folder], out=tmp_path / "runs")
    assert "10 of 10 collectives recorded on every participating rank" in done.summary
    run = read_run(done.directory)
    assert sorted(path.name for path in (run.directory / "traces").iterdir() if "flight" in path.name) == [
        "rank-00000-flight-recorder-0.pickle",
        "rank-00001-flight-recorder-0.pickle",
    ]
    sources = {source.path.name: source for source in find([folder], [])}
    numbered = with_numbers(read_part(sources["rank0.json"]), read_part(sources["nccl_trace_rank_0"]))
    assert [call.seq for call in numbered.calls] == list(range(11, 21))
    assert {call.use.group for call in numbered.calls} == {"0"}


@pytest.mark.parametrize(
    "odd",
    [
        {"time_created_ns": -1},
        {"time_created_ns": 2**63},
        {"time_created_ns": "now"},
        {"profiling_name": None},
        {"profiling_name": "nccl:recv 3<-1"},
        {"collective_seq_id": None, "time_created_ns": None},
    ],
)
def test_odd_entries_are_counted_and_left_out(tmp_path: Path, odd: dict[str, Any]) -> None:
    what = dump(0)
    what["entries"].insert(7, entry(99, "nccl:all_reduce", [1], BASE_NS) | odd)
    what["entries"].insert(3, "no entry")
    write(tmp_path / "dumps", 0, what, as_json=True)
    done = import_traces([tmp_path / "dumps"], out=tmp_path / "runs")
    assert any("2 entries left out: not a collective, or implausible" in gap for gap in done.gaps)
    assert read_run(done.directory).steps.height == STEPS - 1


def test_a_dump_in_which_nothing_repeats_is_one_step(tmp_path: Path) -> None:
    what = dump(0, steps=1)
    write(tmp_path / "dumps", 0, what, as_json=True)
    run = read_run(import_traces([tmp_path / "dumps"], out=tmp_path / "runs").directory)
    assert run.steps.height == 1
    assert run.headers[0].boundary == "nothing: the whole recording is one"


def calls(*sizes: int, gap_ms: dict[int, float] | None = None) -> list[Call]:
    """All-reduces of these sizes, 1 ms apart, or more before those in ``gap_ms``."""
    found, now = [], BASE_NS
    for size in sizes:
        now += round((gap_ms or {}).get(size, 1) * MS)
        use = Use(family="all_reduce", size_bytes=size, dtype=None, group="0", group_ranks=2)
        found.append(Call(use=use, seq=None, called_ns=now, arrived_ns=now, ready_ns=None))
    return found


def test_a_step_begins_after_the_longest_pause() -> None:
    its = calls(*([3, 3, 3, 1, 2] * 10), gap_ms={2: 40.0})
    assert pattern_of(its) == tuple(token_of(one) for one in calls(2, 3, 3, 3, 1))


def test_equal_buckets_are_not_taken_for_steps() -> None:
    its = calls(*([5] * 60 + [9]) * 6, gap_ms={9: 30.0})
    found = pattern_of(its)
    assert found is not None
    assert [token[1] for token in found] == [9] + [5] * 60


def test_what_comes_now_and_then_breaks_no_step() -> None:
    sizes = []
    for step in range(30):
        sizes += [4, 6, 8] + ([100] if step % 10 == 9 else [])
    its = calls(*sizes, gap_ms={4: 20.0})
    pattern = pattern_of(its)
    assert [token[1] for token in pattern or ()] == [4, 6, 8]
    assert len(by_collectives(its, pattern or ())) == 29


def test_nothing_repeats_in_few_or_different_calls() -> None:
    assert pattern_of(calls(1, 2, 3, 4, 5, 6, 7)) is None
    assert pattern_of(calls(1)) is None
    assert pattern_of([]) is None
