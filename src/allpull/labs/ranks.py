"""Run a lab's program on real ranks, observed or alone, and leave no process behind."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allpull.api.jobs import JobFailed
from allpull.api.runs import Run, open_run
from allpull.errors import AllpullError, BadInput, MissingPart
from allpull.jobs.start import JobRequest, StartedJob, start
from allpull.observe.process import end_with_parent
from allpull.output_folder import make_folder
from allpull.rehearse.machine_check import check_tools
from allpull.rundir.safe_open import shown_path
from allpull.units import counted

LOOK_S = 0.2
ALONE_LOOK_S = 0.02
RANKS_PER_CPU = 4  # more only wait for each other: a lab on a laptop should take seconds
TRY_NAMESPACES = "from allpull.rehearse.host import namespaces as n; n.enter_private_namespaces(); n.new_net()"


def check_ranks(ranks: int, least: int) -> None:
    """Whether this machine can run ``ranks``, which are ``least`` or more.

    Raises:
        BadInput: it cannot.
    """
    most = RANKS_PER_CPU * (os.cpu_count() or 1)
    if not least <= ranks <= most:
        cpus = counted(os.cpu_count() or 1, "CPU")
        raise BadInput(f"-n {ranks}: this machine has {cpus}", hint=f"{least} to {most} ranks")


def why_no_hosts() -> str | None:
    """Why this machine cannot make virtual hosts, a clause; None: it can."""
    try:
        check_tools()
    except MissingPart as error:
        return error.message
    tried = subprocess.run([sys.executable, "-c", TRY_NAMESPACES], capture_output=True, check=False)
    return "this system does not let us make namespaces; root may" if tried.returncode else None


def run_ranks(
    command: Sequence[str], ranks: int, name: str, out: Path, *, launcher: str = "local", sets: Sequence[str] = ()
) -> Run:
    """Run ``command`` as ``ranks`` on this machine, as ``allpull run -n`` does; its run directory is made in ``out``.

    Raises:
        JobFailed: a rank failed; the run directory has its output.
        AllpullError: the ranks cannot be started.
    """
    options = {"command": list(command), "ranks": ranks, "launcher": launcher, "name": name, "sets": list(sets)}
    return _finished("run", options, name, out, ["allpull", "run", "-n", str(ranks), "--", *command])


def rehearse_ranks(cluster: str, steps: int, name: str, out: Path, *, shaped: bool) -> Run:
    """Train the virtual accelerator of a cluster file's text for ``steps``, as ``allpull rehearse`` does.

    ``shaped``: on virtual hosts with links; otherwise as processes of this machine.

    Raises:
        JobFailed: a rank failed; the run directory has its output.
        AllpullError: the ranks cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="allpull-lab-") as folder:
        file = Path(folder, "cluster.toml")
        file.write_text(cluster, encoding="utf-8")
        options = {"cluster": str(file), "steps": steps, "unshaped": not shaped}
        origin = ["allpull", "rehearse", str(file), "--steps", str(steps), *([] if shaped else ["--unshaped"])]
        return _finished("rehearse", options, name, out, origin)


def _finished(kind: str, options: Mapping[str, Any], name: str, out: Path, origin: Sequence[str]) -> Run:
    """The run of a job that has ended well; its output is in ``out``."""
    make_folder(out)
    output = out / f"{name}.txt"
    output.write_bytes(b"")
    started = start(JobRequest(kind=kind, options=options, out=out, origin=origin, tied=True, log=output))
    _wait(started)
    if started.exit_code:
        where = shown_path(started.directory)
        raise JobFailed(
            f"the ranks of this lab failed: exit code {started.exit_code}",
            started.directory,
            hint=f"their records and logs are in {where}",
        )
    return open_run(started.directory)


def _wait(started: StartedJob) -> None:
    try:
        while started.exit_code is None:
            started.wait(LOOK_S)
    except BaseException:  # Ctrl-C, or a failure of ours: no rank is left
        started.cancel()
        raise


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def run_here(command: Sequence[str], ranks: int, patience_s: float, look: Callable[[], None] = lambda: None) -> None:
    """Run the Python program ``command`` as ``ranks`` processes of this machine, one thread each, not observed.

    ``look`` is called while they run.

    Raises:
        AllpullError: a rank failed, or they did not end within ``patience_s``; none is left.
    """
    shared = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    if sys.platform.startswith("linux"):
        shared["GLOO_SOCKET_IFNAME"] = "lo"  # a laptop without a network cannot resolve its own name
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **shared, "RANK": str(rank)},
                stderr=subprocess.PIPE,
                preexec_fn=functools.partial(end_with_parent, signal.SIGKILL),  # noqa: PLW1509  one system call
            )
            started.append(process)
        _await(started, patience_s, look)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _await(started: Sequence[subprocess.Popen[bytes]], patience_s: float, look: Callable[[], None]) -> None:
    """Wait until all have ended well.

    Raises:
        AllpullError: one has not, or not in time.
    """
    until_s = time.monotonic() + patience_s
    codes = [process.poll() for process in started]
    while None in codes and not any(codes) and time.monotonic() < until_s:
        look()
        time.sleep(ALONE_LOOK_S)
        codes = [process.poll() for process in started]
    for rank, process in enumerate(started):
        if codes[rank]:
            assert process.stderr is not None
            last = process.stderr.read().decode("utf-8", "replace").strip().splitlines()[-1:]
            reason = "".join(last) or f"exit code {process.returncode}"
            raise AllpullError(f"rank {rank} of this lab failed: {reason}")
    if None in codes:
        waiting = counted(codes.count(None), "rank")
        raise AllpullError(f"{waiting} of this lab did not end within {patience_s:.0f} s")
