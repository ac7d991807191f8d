"""What is said to hosts over ssh, and what is made of their silence, with a stand-in for ssh and for their Python."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allpull import __version__
from allpull.errors import BadInput
from allpull.launch.execute import execute
from allpull.launch.hostfile import MAX_FILE_BYTES
from allpull.launch.job import Job, prepare
from allpull.launch.ssh.launcher import Ssh, SshJob, read_hosts
from allpull.schema.spec import ContainerSpec, LaunchSpec, RunSpec, SshSpec

HOSTS = ("n9", "n10")
PATIENCE_S = 30.0

SSH = """#!/bin/sh
for last; do :; done
if [ "$1" = -G ]; then echo "hostname $last"; exit; fi
host=$(for word; do [ "$before" = -- ] && echo "$word"; before=$word; done)
mkdir -p "$FAKE/$host" && cd "$FAKE/$host" && HOST=$host exec sh -c "$last"
"""

PYTHON = """#!/bin/sh
echo "$HOST $*" >> "$FAKE/said"
case "$2 $3" in
"allpull.observe.agent.remote_setup --leave") rm -r "$4" ;;
"allpull.observe.agent.remote_setup "*)
  mkdir -p made/hosts made/steps made/job/ended
  [ ! -e "$FAKE/hold-$HOST" ] || { touch "$FAKE/held"; while [ -e "$FAKE/hold-$HOST" ]; do sleep 0.05; done; }
  echo '{"directory": "'"$PWD"'/made", "shared": false, "job_file": "'"$PWD"'/made/job/spec.json", "port": 1,
    "secrets": "", "versions": {"torch": "2"}}' | tr -d '\\n' ;;
"allpull.observe.agent "*)
  echo "of $HOST" > made/steps/of-$HOST
  trap 'exit 129' HUP
  touch "$FAKE/agent-$HOST"
  while [ -e "$FAKE/run" ]; do sleep 0.05; done
  touch made/hosts/$HOST.json
  echo '{"host": "'$HOST'", "code": 0, "failures": []}' > made/job/ended/$HOST.json ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all hosts: what each was told stands in ``said``; agents run as long as there is a file ``run``."""
    folder = tmp_path / "hosts"
    (folder / "bin").mkdir(parents=True)
    for name, text in (("ssh", SSH), ("python", PYTHON)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(folder))
    return folder


@pytest.fixture
def job(tmp_path: Path, fake: Path) -> Job:
    launch = LaunchSpec(launcher="ssh:n9,n10", ranks=2, grace_s=2)
    spec = RunSpec(launch=launch, ssh=SshSpec(python=str(fake / "bin/python")))
    return prepare(spec, kind="train", module="m", command=["m"], out=tmp_path / "runs")


def put(fake: Path, name: str, text: str) -> None:
    """Put a program before the machine's own."""
    (fake / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (fake / "bin" / name).chmod(0o755)


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def interrupt_when(happened: Callable[[], bool]) -> None:
    """Press Ctrl-C once ``happened``."""

    def stop() -> None:
        until(happened)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    threading.Thread(target=stop).start()


def left(fake: Path) -> list[str]:
    """Hosts that still have the folder that was made for the job."""
    return [host for host in HOSTS if (fake / host / "made").exists()]


def test_records_come_home_and_nothing_is_left_there(fake, job):
    record = execute(job, Ssh("n9,n10"), lambda: None)
    assert (record.status, record.exit.code, record.exit.reason) == ("completed", 0, None)
    assert record.hosts == ["n9", "n10"]
    assert [(job.directory / f"steps/of-{host}").read_text() for host in HOSTS] == ["of n9\n", "of n10\n"]
    assert left(fake) == []


INSIDE = '{"allpull": "%s", "python": "3.12.1", "torch": "2.9"}'
RUNTIME = """
case "$*" in
*allpull.observe.agent*) echo "$HOST apptainer $*" >> "$FAKE/said" ;;
*) [ $HOST = n9 ] || {other}; echo '{inside}'; exit ;;
esac
while [ "$1" != -m ]; do python=$1; shift; done
exec "$python" "$@"
"""


@pytest.fixture
def contained(fake, job) -> Job:
    """The job, with an image."""
    box = ContainerSpec(image="/an image.sif", python=job.spec.ssh.python, options=("--nv",))
    return replace(job, spec=replace(job.spec, container=box))


def test_agents_run_in_the_container_of_each_host_and_see_its_folder(fake, contained):
    put(fake, "apptainer", RUNTIME.format(other="true", inside=INSIDE % __version__))
    record = execute(contained, Ssh("n9,n10"), lambda: None)
    assert record.exit is not None
    assert (record.status, record.exit.code) == ("completed", 0), record.exit
    agents = [line for line in (fake / "said").read_text().splitlines() if " apptainer " in line]
    assert len(agents) == 2
    for line in agents:
        host = line.partition(" ")[0]
        seen = f"{fake}/{host}/made"
        assert (
            f"exec --bind {seen} --nv /an image.sif {contained.spec.container.python} -m allpull.observe.agent" in line
        )
        assert f"{seen}/job/spec.json" in line
    assert left(fake) == []


@pytest.mark.parametrize(
    ("other", "inside", "expected"),
    [
        ("true", '{"allpull": "0.0.1", "python": "3.12.1", "torch": "2.9"}', "host n9: .* has allpull 0.0.1"),
        ("true", '{"allpull": "1", "python": "3.12.1", "torch": null}', "host n9: .* has no torch"),
        ("exit 127", INSIDE % __version__, "host n10: container.runtime: no apptainer"),
        ("exit 255", INSIDE % __version__, "host n10: .* does not start: exit code 255"),
        ("{ echo '{}'; exit; }", INSIDE % __version__, "host n10: .* does not start: exit code 0"),
    ],
)
def test_a_host_whose_container_cannot_be_used_is_named_and_nothing_stays(fake, contained, other, inside, expected):
    put(fake, "apptainer", RUNTIME.format(other=other, inside=inside))
    with pytest.raises(BadInput, match=expected):
        execute(contained, Ssh("n9,n10"), lambda: None)
    assert left(fake) == []
    assert "allpull.observe.agent " not in (fake / "said").read_text()


def test_records_that_do_not_come_are_said_with_host_folder_and_reason_and_stay_there(fake, job):
    put(fake, "tar", "[ $HOST = n9 ] || { echo 'tar: the disk is broken' >&2; exit 2; }; exec /bin/tar \"$@\"")
    said: list[str] = []
    record = execute(job, Ssh("n9,n10"), lambda: None, said.append)
    expected = (
        f"records of host n10 were not all collected (tar: the disk is broken): they are in {fake}/n10/made there"
    )
    assert (record.status, record.exit.code, record.exit.reason) == ("completed", 0, expected)
    assert said == [f"allpull: {expected}"]
    assert json.loads((job.directory / "run.json").read_text())["exit"]["reason"] == expected
    assert left(fake) == ["n10"]


def test_of_a_job_that_is_cancelled_lost_records_are_said_too(fake, job):
    (fake / "run").touch()
    put(fake, "tar", "echo 'tar: the disk is broken' >&2; exit 2")
    said: list[str] = []
    interrupt_when(lambda: all((fake / f"agent-{host}").exists() for host in HOSTS))
    record = execute(job, Ssh("n9,n10"), lambda: None, said.append)
    assert (record.status, record.exit.code) == ("cancelled", 130)
    assert [f"host {host} " in line for host, line in zip(HOSTS, said, strict=True)] == [True, True]
    assert "the disk is broken" in (record.exit.reason or "")


def test_hosts_are_brought_home_at_once_and_not_waited_for_where_no_agent_began(fake, job):
    """Each copy ends when that of the other host has begun too: one after the other they would never end."""
    (fake / "run").touch()
    put(fake, "seq", 'touch "$FAKE/waited"; exec /usr/bin/seq "$@"')
    wait = f"for i in $(/usr/bin/seq {int(PATIENCE_S * 20)}); do [ -e $FAKE/copy-n9 ] && [ -e $FAKE/copy-n10 ] && break"
    put(fake, "tar", f'touch $FAKE/copy-$HOST; {wait}; sleep 0.05; done; touch $FAKE/done-$i; exec /bin/tar "$@"')
    interrupt_when(lambda: all((fake / f"agent-{host}").exists() for host in HOSTS))
    record = execute(job, Ssh("n9,n10"), lambda: None)
    assert record.status == "cancelled"
    assert not (fake / f"done-{int(PATIENCE_S * 20)}").exists()
    assert not (fake / "waited").exists()
    assert left(fake) == []
    assert (job.directory / "steps/of-n10").exists()


def test_ctrl_c_while_hosts_arrive_leaves_nothing_there(fake, job):
    """Also of the host whose answer was still on its way."""
    (fake / "hold-n10").touch()

    def one_is_on_its_way() -> bool:
        return (fake / "held").exists() and (fake / "n9/made").exists()

    interrupt_when(one_is_on_its_way)
    threading.Thread(target=lambda: (until(one_is_on_its_way), time.sleep(0.5), (fake / "hold-n10").unlink())).start()
    record = execute(job, Ssh("n9,n10"), lambda: None)
    assert (record.status, record.exit.code) == ("cancelled", 130)
    assert left(fake) == []
    assert "allpull.observe.agent " not in (fake / "said").read_text()


def test_a_host_that_cannot_take_the_job_has_the_others_leave(fake, job):
    put(fake, "python", f'[ "$HOST $4" = "n10 " ] && {{ echo "no disk" >&2; exit 1; }}\n{PYTHON}')
    with pytest.raises(BadInput, match="host n10: no disk"):
        execute(job, Ssh("n9,n10"), lambda: None)
    assert left(fake) == []


def test_ctrl_c_between_two_hosts_that_start_ends_the_first(fake, job, monkeypatch):
    (fake / "run").touch()
    started = []

    def start(self: object, command: str, log: Path) -> object:
        if started:
            raise KeyboardInterrupt
        started.append(begin(self, command, log))
        return started[0]

    from allpull.launch.ssh.connection import Remote  # noqa: PLC0415

    begin = Remote.start
    monkeypatch.setattr(Remote, "start", start)
    with pytest.raises(KeyboardInterrupt):
        Ssh("n9,n10").submit(job)
    assert started[0].poll() is not None
    assert left(fake) == []


def test_every_hosts_agent_is_warned(fake, job):
    (fake / "run").touch()
    running = Ssh("n9,n10").submit(job)
    assert isinstance(running, SshJob)
    running.warn()
    said = [f"{host} -m allpull.observe.agent.warn {fake}/{host}/made/job/spec.json" for host in HOSTS]
    until(lambda: set(said) <= set((fake / "said").read_text().splitlines()))
    (fake / "run").unlink()
    until(lambda: running.poll() is not None)


def test_a_host_list_of_any_length_is_read_at_once():
    """In time that grows with the list: counting each name in it took minutes for as many as may be."""
    names = read_hosts("n[1-65535]")
    assert len(names) == 65535
    with pytest.raises(BadInput, match="host n7 is named twice"):
        read_hosts("n[1-65534],n7")


def test_a_file_of_hosts_may_hold_anything(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\n\n n1 slots=2\nn[2-3]  # two\n")
    assert read_hosts(str(path)) == ["n1", "n2", "n3"]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_hosts(str(path))
    path.write_bytes(b"n1\n" * MAX_FILE_BYTES)
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        read_hosts(str(path))
