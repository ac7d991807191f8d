"""Waiting for forked children: who failed, who was ended for it, and how soon. Each in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="children are forked"),
]

PRELUDE = """
import dataclasses, json, os, signal, sys, time
from allpull.rehearse.ranks.children import Bell, Kills, attend

bell = Bell()

def child(program):
    pid = os.fork()
    if pid == 0:
        bell.leave_to_parent()
        os._exit(program() or 0)
    return pid

def sleep(seconds):
    return lambda: time.sleep(seconds)

def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)

def tell(ended):
    names = [(failure.name, failure.exit_code) for failure in ended.failures]
    print(json.dumps([names, ended.stopped_by, ended.code]))
"""


def attended(program: str) -> Any:
    """(failures, signal that stopped us, exit code), as ``program`` tells."""
    code = PRELUDE + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_well():
    assert attended("""
        children = {child(sleep(0.05)): name for name in range(3)}
        tell(attend(children, bell, grace_s=1, aftermath_s=0.1))
    """) == [[], None, 0]


def test_the_first_that_fails_ends_the_others_and_they_are_no_failures():
    assert attended("""
        children = {child(sleep(60)): 0, child(lambda: 3): 1, child(sleep(60)): 2}
        tell(attend(children, bell, grace_s=20, aftermath_s=0.05))
    """) == [[[1, 3]], None, 3]


def test_a_cause_that_is_slow_to_end_is_still_named():
    """A victim may be gone first: its exit code would then be all that was known."""
    failures, _, _ = attended("""
        def slow(code):
            time.sleep(0.3)
            return code
        children = {child(lambda: 1): 0, child(lambda: slow(7)): 1}
        tell(attend(children, bell, grace_s=20, aftermath_s=5))
    """)
    assert failures == [[0, 1], [1, 7]]


def test_a_child_that_does_not_listen_is_killed_after_the_grace_time():
    assert attended("""
        ready, tell_ready = os.pipe()
        def deaf():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(tell_ready, b".")
            time.sleep(60)
        children = {child(deaf): 0}
        os.read(ready, 1)
        children[child(lambda: 5)] = 1
        tell(attend(children, bell, grace_s=0.2, aftermath_s=0))
    """) == [[[1, 5]], None, 5]


@pytest.mark.parametrize(
    ("name", "stopped_by", "code"), [("SIGTERM", 15, 143), ("SIGHUP", 1, 129), ("SIGUSR1", None, 0)]
)
def test_a_signal_ends_them_all_and_is_nobodys_failure(name, stopped_by, code):
    assert attended(f"""
        children = {{child(sleep(60)): name for name in range(2)}}
        me = os.getpid()
        helper = child(lambda: (time.sleep(0.1), os.kill(me, signal.{name})) and 0)
        tell(attend(children, bell, grace_s=20, aftermath_s=0.05))
        os.waitpid(helper, 0)
    """) == [[], stopped_by, code]


def test_a_planned_kill_takes_its_child_at_its_time_which_counts_from_the_end_of_a_descriptor():
    failures, _, code = attended("""
        pids = [child(sleep(60)), child(sleep(60))]
        zero, begin = os.pipe()
        starter = child(sleep(0.3))  # which has the last copy of the other end
        os.close(begin)
        killed, failed = [], []
        kills = Kills([(0.2, pids[1]), (50, pids[0])], zero, lambda name: killed.append((name, time.monotonic())))
        began = time.monotonic()
        ended = attend({starter: 3, pids[0]: 4, pids[1]: 5}, bell, grace_s=20, aftermath_s=0.05, kills=kills,
                       on_failure=lambda: failed.append(1))
        ((name, at),) = killed
        assert name == 5 and at - began >= 0.4
        assert failed == [1]
        tell(ended)
    """)
    assert (failures, code) == ([[5, -signal.SIGKILL]], 128 + signal.SIGKILL)


def test_what_counts_from_a_moment_that_never_comes_never_happens():
    assert attended("""
        zero, begin = os.pipe()
        pid = child(sleep(0.3))
        kills = Kills([(0.0, pid)], zero, lambda name: 1 / 0)
        tell(attend({pid: 0}, bell, grace_s=20, aftermath_s=0.05, kills=kills))
    """) == [[], None, 0]
