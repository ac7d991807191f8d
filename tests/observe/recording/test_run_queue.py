"""The waiting of the thread that trains for a CPU, against threads that are made to share one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from allpull.observe.recording import run_queue
from allpull.observe.recording.run_queue import RunQueue

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel counts no waiting")


def test_the_first_question_has_no_answer_and_later_ones_add_up() -> None:
    queue = RunQueue()
    assert queue.since() is None
    told = [queue.since() for _ in range(3)]
    assert all(one is not None and one >= 0 for one in told)


def test_another_thread_begins_anew() -> None:
    queue = RunQueue()
    queue.since()
    told: list[int | None] = []
    thread = threading.Thread(target=lambda: told.extend([queue.since(), queue.since()]))
    thread.start()
    thread.join()
    assert told[0] is None
    assert told[1] is not None
    assert queue.since() is None


@pytest.mark.parametrize(("counts", "told"), [(True, [None, 4, 2]), (False, [None, None, None])])
def test_a_thread_that_has_just_begun_is_no_kernel_that_does_not_count(
    monkeypatch: pytest.MonkeyPatch, counts: bool, told: list[int | None]
) -> None:
    """Of its first microseconds the kernel may say 0 too."""
    said = iter([b"0 5 0", b"70 9 1", b"80 11 2"])
    monkeypatch.setattr(run_queue.os, "pread", lambda *_: next(said))
    monkeypatch.setattr(run_queue, "_counts", lambda: counts)
    queue = RunQueue()
    assert [queue.since() for _ in range(3)] == told


def test_this_kernel_counts() -> None:
    assert run_queue._counts()


def test_a_program_that_closes_our_file_is_not_disturbed() -> None:
    queue = RunQueue()
    queue.since()
    assert queue._file is not None
    os.close(queue._file)
    assert queue.since() is None
    assert queue.since() is None


def test_a_file_that_took_the_place_of_ours_stays_open(tmp_path: Path) -> None:
    queue = RunQueue()
    queue.since()
    assert queue._file is not None
    os.close(queue._file)
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    assert theirs == queue._file
    queue.close()
    os.write(theirs, b"still open")
    os.close(theirs)


SHARED = """
import os, sys, time
from allpull.observe.recording.run_queue import RunQueue

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
queue = RunQueue()
queue.since()
rival = os.fork() if sys.argv[1] == "rival" else 0
if rival == 0 and sys.argv[1] == "rival":
    while True:
        pass
begun_s = time.process_time()
while time.process_time() - begun_s < 0.3:
    pass
waited = queue.since()
if rival:
    os.kill(rival, 9)
print(waited)
"""


def test_who_shares_a_cpu_with_another_waits_about_as_long_as_it_computes() -> None:
    """An equal rival has the CPU for half of the time: computing 0.3 s takes 0.3 s of waiting, whatever else runs."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARED), "rival"], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) > 0.15e9


def test_sleeping_is_no_waiting() -> None:
    queue = RunQueue()
    queue.since()
    begun_ns = time.monotonic_ns()
    time.sleep(0.2)
    slept_ns = time.monotonic_ns() - begun_ns
    waited = queue.since()
    assert waited is not None
    assert waited <= slept_ns - 0.19e9
