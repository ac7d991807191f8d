"""``allpull watch`` and ``show`` on the run directory of a stranger: they neither hang, nor leave it, nor fail."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from rich.console import Console

from allpull.analyse.job_health import assess
from allpull.errors import AllpullError, RunDirError
from allpull.report.printable import inert_json, printable
from allpull.report.terminal.watch import page
from allpull.rundir import layout
from allpull.rundir.live.snapshot import job_snapshot
from allpull.rundir.read.run import read_run

KEPT = Path(__file__).parent.parent / "runs/v1.1"


def fifo(relative: str) -> Callable[[Path], None]:
    def attack(root: Path) -> None:
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).unlink(missing_ok=True)
        os.mkfifo(root / relative)

    return attack


def link(relative: str) -> Callable[[Path], None]:
    def attack(root: Path) -> None:
        outside = root.parent / "outside"
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        if (root / relative).exists():
            (root / relative).rename(outside)
        else:
            outside.write_bytes(b"\x01" * 576)
        (root / relative).symlink_to(outside)

    return attack


def first_line(relative: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def attack(root: Path) -> None:
        first, _, others = (root / relative).read_text().partition("\n")
        (root / relative).write_text(change(first) + "\n" + others)

    return attack


def last_line(relative: str, line: str) -> Callable[[Path], None]:
    def attack(root: Path) -> None:
        with (root / relative).open("a") as file:
            file.write(line + "\n")

    return attack


def sparse(relative: str) -> Callable[[Path], None]:
    """A line of a gigabyte, which takes no room on the disk."""

    def attack(root: Path) -> None:
        with (root / relative).open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.truncate(file.tell() + (1 << 30))

    return attack


STEPS, EVENTS, LIVE = layout.steps_file(0), layout.events_file(0), layout.live_file(0)
METRIC = {"t_ns": 1, "kind": "metric", "name": "train_loss", "epoch": 0}
ATTACKS = {
    **{f"pipe-{name}": fifo(name) for name in (STEPS, EVENTS, LIVE, layout.RUN_JSON)},
    **{f"link-{name}": link(name) for name in (STEPS, EVENTS, LIVE)},
    **{f"huge-{name}": sparse(name) for name in (STEPS, EVENTS, layout.RUN_JSON)},
    "deep-header": first_line(STEPS, lambda _: "[" * 60_000 + "]" * 60_000),
    "deep-header-field": first_line(STEPS, lambda line: line[:-1] + ',"x":' + "[" * 60_000 + "]" * 60_000 + "}"),
    "infinite-pid": first_line(STEPS, lambda line: json.dumps({**json.loads(line), "pid": float("inf")})),
    "huge-pid": first_line(STEPS, lambda line: json.dumps({**json.loads(line), "pid": 10**400})),
    "large-pid": first_line(STEPS, lambda line: json.dumps({**json.loads(line), "pid": 2**63 - 1})),
    "metric": last_line(EVENTS, json.dumps({**METRIC, "value": 10**400})),
    "metric-1e400": last_line(EVENTS, '{"t_ns": 1, "kind": "metric", "name": "steps_per_epoch", "value": 1e400}'),
    "steps-per-epoch": last_line(EVENTS, '{"t_ns": 1, "kind": "metric", "name": "steps_per_epoch", "value": 1e308}'),
    "step-number": last_line(STEPS, json.dumps({"step": 2**63 - 1, "begin_ns": -(2**63), "end_ns": 2**63 - 1})),
}


CUT_OFF_S = 60


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A run of a stranger that says that it still runs."""
    shutil.copytree(KEPT, tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(json.dumps({**record, "status": "running", "exit": None}))
    return tmp_path / "run"


@pytest.fixture
def hung() -> Iterator[None]:
    """Ends a test that hangs, as opening a pipe does."""

    def cut(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, cut)
    signal.alarm(CUT_OFF_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("hung")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_file_of_a_stranger_hangs_it_or_ends_it_by_our_own_failure(strange: Path, attack) -> None:
    attack(strange)
    tracemalloc.start()
    try:
        result = assess(job_snapshot(strange))
        Console(file=io.StringIO()).print(page(result))
        assert json.loads(inert_json(result.model_dump_json(by_alias=True)))
    except AllpullError:
        pass
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 64 << 20


@pytest.mark.usefixtures("hung")
@pytest.mark.parametrize("name", [STEPS, EVENTS, LIVE])
def test_a_link_out_of_the_directory_is_not_followed(strange: Path, name: str) -> None:
    before = job_snapshot(strange)
    link(name)(strange)
    after = job_snapshot(strange)
    if name == STEPS:
        assert {one.rank for one in after.ranks} == {one.rank for one in before.ranks} - {0}
    elif name == LIVE:
        assert after.ranks[0].activity is None
    else:
        assert not after.metrics


@pytest.mark.usefixtures("hung")
@pytest.mark.parametrize("name", [STEPS, EVENTS])
def test_show_refuses_a_line_of_a_gigabyte_before_it_reads_it(strange: Path, name: str) -> None:
    """It took 6.6 GB, and under a limit of memory ended by SIGABRT."""
    sparse(name)(strange)
    tracemalloc.start()
    try:
        with pytest.raises(RunDirError, match=r"a line of more than|grew past its budget"):
            read_run(strange)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 20


def test_json_has_no_character_that_acts_on_a_terminal() -> None:
    hostile = "\u202eevil\x9b31m\x7f\u2066\u2028\ufeff\x1b[31m"
    text = inert_json(json.dumps({"name": hostile}, ensure_ascii=False, indent=1))
    assert printable(text.replace("\n", "")) == text.replace("\n", "")
    assert json.loads(text) == {"name": hostile}


@pytest.mark.parametrize("value", ["4611686018427387904", "9223372036854775807"])
def test_a_limit_that_no_data_has_is_an_error_of_the_user(run_here, tmp_path: Path, value: str) -> None:
    done = run_here("train", "digits", "--set", f"data.limit={value}", "--out", str(tmp_path), "--dry-run")
    assert done.returncode == 2
    assert "data.limit" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_ends_on_pipes_in_place_of_every_file(strange: Path, options: list[str]) -> None:
    for name in (STEPS, EVENTS, LIVE):
        fifo(name)(strange)
    command = [sys.executable, "-m", "allpull", "watch", str(strange), "--once", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
