"""A process that we start for a job, and its descendants: followed, signalled and killed as one."""

from __future__ import annotations

import contextlib
import functools
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import psutil

from allpull.observe.process import end_with_parent
from allpull.rundir.write import no_follow

LINGER_S = 2.0  # descendants may write their last records first: the sidecar, under mpirun


class ProcessTree:
    """A process and its descendants, which end when this process is killed (on Linux).

    Its output goes to the end of ``log``, except the streams (stdout, stderr) that are ``shown`` to the user, as ours.
    """

    def __init__(
        self, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str], shown: Collection[str] = ()
    ) -> None:
        with open(log, "ab", opener=no_follow) as output:
            self._process = subprocess.Popen(
                list(arguments),
                stdin=subprocess.DEVNULL,
                stdout=None if "stdout" in shown else output,
                stderr=None if "stderr" in shown else output,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is ours to pass on, once, and politely
                preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509  one system call
            )
        self._tree = {self._process.pid: psutil.Process(self._process.pid)}

    def poll(self) -> int | None:
        """The exit code, 128 + n for signal n, once the process and its descendants have ended; else None."""
        self._remember()
        code = self._process.poll()
        if code is None:
            return None
        self._kill_leftovers(LINGER_S)
        return 128 - code if code < 0 else code

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it still runs."""
        self._process.send_signal(number)

    def cancel(self, wait_s: float) -> None:
        """Ask the process to end; after ``wait_s`` seconds kill what is left of the tree. 0: at once."""
        self._remember()
        if self._process.poll() is None and wait_s > 0:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        self._kill_leftovers(LINGER_S if wait_s > 0 else 0)
        self._process.wait()

    def _remember(self) -> None:
        with contextlib.suppress(psutil.Error):
            children = self._tree[self._process.pid].children(recursive=True)
            self._tree.update({child.pid: child for child in children})

    def _kill_leftovers(self, linger_s: float) -> None:
        alive = [process for process in self._tree.values() if _runs(process)]
        if self._process.poll() is not None:  # else the root itself has to be killed: nothing to wait for
            _, alive = psutil.wait_procs(alive, timeout=linger_s)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=5)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
