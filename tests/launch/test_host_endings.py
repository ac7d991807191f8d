"""How ranks ended, read from what they and what started them left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allpull.launch.host_endings import HostEnding, endings_from_ranks, read_host_ending, read_host_endings
from allpull.launch.job import prospect
from allpull.launch.outcome import exit_of, versions_of
from allpull.rundir import layout
from allpull.schema.spec import RunSpec


def write(directory: Path, name: str, *records: dict[str, Any]) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def header(rank: int, host: str, **fields: Any) -> dict[str, Any]:
    return {"rank": rank, "ranks": rank + 1, "host": host, "pid": 1, **fields}


def raised(message: str, t_ns: int) -> dict[str, Any]:
    return {"kind": "exception", "type": "ValueError", "message": message, "t_ns": t_ns}


def test_an_agent_that_was_killed_leaves_its_code_only(tmp_path):
    assert read_host_ending(tmp_path, "n1", 137).failures == ()
    write(tmp_path, layout.ended_file("n1"), {"host": "n1", "code": 1, "failures": [{"rank": 2, "exit_code": 1}]})
    (failure,) = read_host_ending(tmp_path, "n1", 1).failures
    assert (failure.rank, failure.host) == (2, "n1")


def test_hosts_that_wrote_nothing_sensible_are_left_out(tmp_path):
    write(tmp_path, layout.ended_file("n2"), {"host": "n2", "code": 3, "failures": []})
    write(tmp_path, layout.ended_file("n1"), {"host": "n1", "code": 0, "failures": []})
    (tmp_path / layout.ENDED / "torn.json").write_text('{"host": "n3", ')
    write(tmp_path, f"{layout.ENDED}/odd.json", {"host": 4})
    assert [(host.host, host.code) for host in read_host_endings(tmp_path)] == [("n1", 0), ("n2", 3)]


def test_hosts_are_in_the_order_of_the_job_and_not_of_their_names(tmp_path):
    """Where names are not padded, n10 stands before n9 in a listing: the first host would not be the first."""
    for index, host in enumerate(["n9", "n10", "n11", "a1"]):
        write(tmp_path, layout.ended_file(host), {"host": host, "index": index, "code": 0, "failures": []})
    assert [host.host for host in read_host_endings(tmp_path)] == ["n9", "n10", "n11", "a1"]


def test_what_an_agent_says_of_its_end_is_heard_and_masked(tmp_path):
    told = {"host": "n1", "code": 68, "reason": "cannot resolve n9, password=hunter2", "failures": []}
    write(tmp_path, layout.ended_file("n1"), told)
    assert read_host_ending(tmp_path, "n1", 68).reason == "cannot resolve n9, password=[redacted]"
    write(tmp_path, layout.ended_file("n1"), {**told, "reason": ["no text"]})
    assert read_host_ending(tmp_path, "n1", 68).reason is None


def test_versions_are_those_that_ranks_had_and_not_those_of_whoever_started_them(tmp_path):
    ours = {"allpull": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "psutil": "7"}
    record = prospect(RunSpec(), kind="train", module="m", command=["x"], out=tmp_path).record
    record = record.model_copy(update={"versions": ours})
    theirs = {"python": "3.12.1", "torch": None, "evil": "1", "numpy": ["2"], "polars": "9" * 5000}
    write(tmp_path, layout.ended_file("n2"), {"host": "n2", "index": 1, "code": 0, "failures": [], "versions": theirs})
    write(tmp_path, layout.ended_file("n1"), {"host": "n1", "index": 0, "code": 0, "failures": [], "versions": 3})
    found = versions_of(record, read_host_endings(tmp_path))
    assert found == {"allpull": "0.1.0", "python": "3.12.1", "torch": None, "psutil": "7"}
    assert versions_of(record, [read_host_ending(tmp_path, "n3", 137)]) == ours


def test_under_mpirun_the_blamed_rank_and_those_that_raised_failed_and_no_others(tmp_path):
    for rank, host in enumerate(["n1", "n1", "n2", "n2"]):
        write(tmp_path, layout.steps_file(rank), header(rank, host))
    write(tmp_path, layout.events_file(1), {}, raised("connection closed", 50))
    write(tmp_path, layout.events_file(3), {}, raised("no such label", 40))
    ended = endings_from_ranks(tmp_path, 4, 1, first=(3, 1), log_tail=("mpirun says",))
    assert [(host.host, [failure.rank for failure in host.failures]) for host in ended] == [("n1", [1]), ("n2", [3])]
    end = exit_of(ended)
    assert (end.rank, end.host, end.exception, end.code) == (3, "n2", "ValueError: no such label", 1)


def test_the_hint_of_the_exception_that_ended_the_job_comes_with_it(tmp_path):
    told = {"host": "n1", "code": 1, "failures": [{"rank": 0, "exit_code": 1}, {"rank": 1, "exit_code": 1}]}
    write(tmp_path, layout.ended_file("n1"), told)
    write(tmp_path, layout.events_file(0), {}, raised("connection closed", 50))
    write(tmp_path, layout.events_file(1), {}, {**raised("no labels", 40), "hint": "get the labels"})
    end = exit_of([read_host_ending(tmp_path, "n1", 1)])
    assert (end.exception, end.hint) == ("ValueError: no labels", "get the labels")
    assert end.describe() == "rank 1 on n1 failed: ValueError: no labels; hint: get the labels"
    write(tmp_path, layout.events_file(1), {}, raised("no labels", 40))
    assert exit_of([read_host_ending(tmp_path, "n1", 1)]).hint is None


def test_when_all_went_well_an_exception_that_was_caught_is_no_failure(tmp_path):
    write(tmp_path, layout.steps_file(0), header(0, "n1"))
    write(tmp_path, layout.events_file(0), {}, raised("caught", 1))
    (host,) = endings_from_ranks(tmp_path, 1, 0, first=None, log_tail=())
    assert (host.host, host.code, host.failures) == ("n1", 0, ())


def test_where_no_rank_began_the_starter_speaks(tmp_path):
    end = exit_of(endings_from_ranks(tmp_path, 2, 213, first=None, log_tail=("not enough slots",)))
    assert (end.code, end.rank, end.reason) == (213, None, "mpirun started no rank")
    assert end.log_tail == ["not enough slots"]


def test_between_hosts_the_earlier_failure_is_told_by_real_time(tmp_path):
    """Monotonic clocks begin at each boot: host n1 has run for a day longer than n2."""
    day_ns = 86_400 * 10**9
    for rank, (host, boot, monotonic_ns) in enumerate([("n1", "a", day_ns), ("n2", "b", 0), ("n2", "b", 0)]):
        clock = {"monotonic_ns": monotonic_ns, "realtime_ns": 5 * day_ns}
        write(tmp_path, layout.steps_file(rank), header(rank, host, boot_id=boot, clock=clock))
    write(tmp_path, layout.events_file(0), {}, raised("the cause", day_ns + 10))
    write(tmp_path, layout.events_file(1), {}, raised("connection closed", 11))
    write(tmp_path, layout.events_file(2), {}, raised("connection closed", 12))
    assert exit_of(endings_from_ranks(tmp_path, 3, 1, first=None, log_tail=())).rank == 0


def test_on_one_boot_the_monotonic_clock_decides_whatever_wall_clocks_say(tmp_path):
    """As between rehearsed hosts whose wall clocks are set apart."""
    for rank, ahead_ns in enumerate([5 * 10**9, 0]):
        clock = {"monotonic_ns": 0, "realtime_ns": ahead_ns}
        write(tmp_path, layout.steps_file(rank), header(rank, f"n{rank}", boot_id="a", clock=clock))
        write(tmp_path, layout.events_file(rank), {}, raised("x", 10 + rank))
    assert exit_of(endings_from_ranks(tmp_path, 2, 1, first=None, log_tail=())).rank == 0


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("Traceback (most recent call last):\n  import torch\nMemoryError\n", "MemoryError"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "bad_alloc"),
        ("OSError: [Errno 24] Too many open files: '/x'\n", "[Errno 24] Too many open files"),
    ],
)
@pytest.mark.parametrize("name", [layout.AGENT_LOG, layout.agent_log("n9"), layout.torch_log("n9")])
def test_an_agent_that_failed_itself_says_why(tmp_path, log, reason, name):
    (tmp_path / layout.LOGS).mkdir(parents=True)
    (tmp_path / name).write_text(log)
    ended = read_host_ending(tmp_path, "n9", 134)
    assert ended.reason is not None
    assert ended.reason.startswith("the agent of host n9 failed: ")
    assert reason in ended.reason
    assert exit_of([ended]).reason == ended.reason


def test_an_agent_that_was_killed_is_named_whatever_torch_warned_of(tmp_path):
    (tmp_path / layout.LOGS).mkdir(parents=True)
    (tmp_path / layout.AGENT_LOG).write_text("W1122 a warning of torch's\n")
    reason = "the agent of host n9 was ended by SIGKILL, as the kernel does when memory runs out"
    assert read_host_ending(tmp_path, "n9", 137) == HostEnding(host="n9", code=137, reason=reason)
    assert read_host_ending(tmp_path, "n9", 143) == HostEnding(host="n9", code=143)  # as on Ctrl-C
