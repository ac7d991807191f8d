"""Who owns a virtual cluster, and what happens to its processes when the owner is dead: to those, and to no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allpull.rehearse.host import ownership

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and pidfds are Linux's")

OWNER = """
import sys, time
from pathlib import Path
from allpull.rehearse.host import ownership
ownership.claim(sys.argv[1], Path("/nowhere"), place=Path(sys.argv[2]))
print("claimed", flush=True)
time.sleep(60)
"""
DETACHED = """
import os, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    os.close(1)
    time.sleep(60)
"""


def place(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def sleeper(cluster: str) -> subprocess.Popen[str]:
    """A process of ``cluster``."""
    return subprocess.Popen(["sleep", "60"], env={**os.environ, ownership.TAG: cluster}, text=True)


def owner(cluster: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", OWNER, cluster, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def ended(process: subprocess.Popen[str]) -> bool:
    try:
        return process.wait(timeout=60) == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        return False


def test_what_a_killed_owner_left_is_ended_and_nothing_else(tmp_path):
    folder, ours, foreign = place(tmp_path), ownership.new_id(), ownership.new_id()
    dead, alive = owner(ours, folder), owner(foreign, folder)
    left, kept, untagged = sleeper(ours), sleeper(foreign), sleeper("")
    kill(dead)
    try:
        assert ownership.clean_dead(folder) == 1
        assert ended(left)
        assert [process.poll() for process in (kept, untagged, alive)] == [None] * 3
        assert [path.stem for path in folder.iterdir()] == [foreign]
        assert ownership.clean_dead(folder) == 0
    finally:
        for process in (kept, untagged, alive):
            kill(process)


def test_a_process_that_was_started_just_now_is_not_missed():
    """Between two programs a process has no environment for a moment."""
    for _ in range(30):
        cluster = ownership.new_id()
        left = sleeper(cluster)
        ownership.end_all(cluster)
        assert ended(left)


def test_a_process_that_left_its_family_is_still_known(tmp_path):
    """In a session of its own, its parent dead, as a daemon that a rank started would be."""
    cluster = ownership.new_id()
    command, environment = [sys.executable, "-c", DETACHED], {**os.environ, ownership.TAG: cluster}
    started = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=60, check=False, text=True)
    pid = int(started.stdout)
    assert ownership.start_ticks(pid) is not None
    ownership.end_all(cluster)
    deadline = time.monotonic() + 60
    while ownership.start_ticks(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ownership.start_ticks(pid) is None


def test_an_owner_whose_process_id_was_given_away_is_dead(tmp_path):
    folder, cluster = place(tmp_path), ownership.new_id()
    path = ownership.claim(cluster, tmp_path, place=folder)
    assert ownership.clean_dead(folder) == 0
    record = json.loads(path.read_text())
    assert record["owner_pid"] == os.getpid()
    path.write_text(json.dumps({**record, "owner_start_ticks": record["owner_start_ticks"] + 1}))
    assert ownership.clean_dead(folder) == 1
    assert not path.exists()


def test_an_owner_from_before_the_last_boot_is_dead(tmp_path):
    folder = place(tmp_path)
    path = ownership.claim(ownership.new_id(), tmp_path, place=folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    assert ownership.clean_dead(folder) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"owner_pid": "x"}', '{"owner_pid": 1}'])
def test_what_cannot_be_understood_is_left_alone(tmp_path, content):
    folder = place(tmp_path)
    for name in (f"{ownership.new_id()}.json", "notes.json", "..json"):
        (folder / name).write_text(content)
    assert ownership.clean_dead(folder) == 0
    assert len(list(folder.iterdir())) == 3


def test_a_folder_that_others_may_write_to_is_not_believed(tmp_path):
    folder = place(tmp_path)
    path = ownership.claim(ownership.new_id(), tmp_path, place=folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    folder.chmod(0o777)
    assert ownership.clean_dead(folder) == 0
    with pytest.raises(PermissionError):
        ownership.claim(ownership.new_id(), tmp_path, place=folder)
    (tmp_path / "link").symlink_to(folder)
    folder.chmod(0o700)
    assert ownership.clean_dead(tmp_path / "link") == 0
    assert ownership.clean_dead(tmp_path / "absent") == 0


def test_records_are_their_owners_alone(tmp_path):
    folder = place(tmp_path)
    path = ownership.claim(ownership.new_id(), tmp_path, place=folder)
    assert path.stat().st_mode & 0o777 == 0o600
    ownership.release(path)
    ownership.release(path)
    assert list(folder.iterdir()) == []


def test_a_child_ends_with_its_parent(tmp_path):
    """The parent is killed; the child was told of nothing but its parent's id."""
    program = (
        "import os, subprocess, sys, time\n"
        "child = 'import os, signal, sys, time; from allpull.rehearse.host import ownership; '"
        " + f'ownership.end_with_parent({os.getpid()}, signal.SIGKILL); '"
        " + 'print(os.getpid(), flush=True); time.sleep(60)'\n"
        "subprocess.run([sys.executable, '-c', child])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert ownership.start_ticks(pid) is not None
    kill(parent)
    deadline = time.monotonic() + 60
    while ownership.start_ticks(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ownership.start_ticks(pid) is None
