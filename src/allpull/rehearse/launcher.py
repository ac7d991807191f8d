"""The launcher of a virtual cluster: check that this machine can run it, start its keeper, and wait for the end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from allpull.errors import AllpullError, BadInput, MissingPart
from allpull.launch.echo import STDERR, Log
from allpull.launch.host_endings import HostEnding, read_host_ending
from allpull.launch.job import Job, environment, with_secrets
from allpull.launch.running import Running
from allpull.rehearse import shell_script
from allpull.rehearse.cluster.faults import AcceleratorFault, Fault, MachineFault
from allpull.rehearse.cluster.file import load_cluster
from allpull.rehearse.cluster.model import Cluster, truth
from allpull.rehearse.host import fake_clock, ownership
from allpull.rehearse.host import order as orders
from allpull.rehearse.host.truth import not_struck
from allpull.rehearse.job_plan import make_order
from allpull.rehearse.machine_check import check_machine, idle_kinds, tell, too_fast
from allpull.rundir import layout
from allpull.rundir.read.endings import agent_ending
from allpull.rundir.read.lenient import log_tail
from allpull.rundir.write import no_follow, whole_json

ACCELERATOR = "allpull.rehearse.ranks"  # programs below it are the virtual accelerator's

READY_S = 60.0  # for hosts and links to be ready; half a second is usual
KEEPER_EXTRA_S = 10.0  # the keeper waits for the fork server, which gives its ranks the grace time


class Rehearse:
    """The launcher of the cluster file at ``path``; ``say`` is called with each deviation from the file, a sentence.

    Raises:
        BadInput: the file cannot be read.
        ConfigError: with one line for each error in the file.
    """

    def __init__(self, path: str | Path, *, say: Callable[[str], None] = tell) -> None:
        if not str(path):
            raise BadInput("--launcher rehearse needs a cluster file", hint="write --launcher rehearse:CLUSTER.toml")
        self.cluster = load_cluster(Path(path))
        self._say = say

    @property
    def ranks(self) -> int:
        """The number of ranks of the cluster; a job must have as many."""
        return self.cluster.ranks

    def plan(self, job: Job) -> str:
        """The network and the ranks, as shell lines.

        Raises:
            BadInput, MissingPart: as ``submit``; nothing was started.
        """
        check_machine(self.cluster, job.spec, accelerated=_is_accelerated(job))
        order = make_order(job, self.cluster, cluster_id="", state_file=Path())
        return shell_script.show(order, self._remarks(job))

    def submit(self, job: Job) -> RehearsedJob:
        """Make the cluster and start ``job`` on it; what dead owners left is removed first.

        Raises:
            BadInput: the job has another number of ranks, or more than this machine can hold.
            MissingPart: a program, or the right to make namespaces, is missing; nothing is left behind.
            AllpullError: the virtual network could not be made; nothing is left behind.
        """
        accelerated = _is_accelerated(job)
        check_machine(self.cluster, job.spec, accelerated=accelerated)
        ownership.clean_dead()
        if job.program is not None and any(host.clock_offset_s or host.clock_drift_ppm for host in self.cluster.hosts):
            fake_clock.install_sitecustomize(job.directory)
        acting = Fault if accelerated else MachineFault
        whole_json(str(job.directory / layout.CLUSTER_TRUTH), truth(self.cluster, acting=acting))
        running = RehearsedJob(job, self.cluster, self._say)
        for line in self._remarks(job):
            self._say(line)
        return running

    def _remarks(self, job: Job) -> list[str]:
        """What will differ from the cluster file, in sentences."""
        fast, idle = too_fast(self.cluster), idle_kinds(self.cluster, AcceleratorFault)
        remarks = [fast] if fast else []
        if idle and not _is_accelerated(job):
            program = "allpull's trainer" if job.program is None else "a command of yours"
            remarks.append(f"faults of the virtual accelerator do not act on {program}: {', '.join(idle)}")
        return remarks


def _is_accelerated(job: Job) -> bool:
    """Whether the ranks of ``job`` are virtual accelerators."""
    return job.module.startswith(ACCELERATOR)


class RehearsedJob(Running):
    """A job on a virtual cluster."""

    def __init__(self, job: Job, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._job = job
        self._say = say
        self._hosts = [host.name for host in cluster.hosts]
        self._id = ownership.new_id()
        self._log = job.directory / layout.CLUSTER_LOG
        self.output = [] if job.program is None else [Log(path=self._log, stream=STDERR)]
        self._keeper: subprocess.Popen[bytes] | None = None
        try:
            self._state = ownership.claim(self._id, job.directory)
        except OSError as error:
            raise BadInput(
                f"cannot record the owner of the virtual cluster: {error.strerror} ({error.filename})",
                hint="this folder must belong to you and be writable",
            ) from error
        ready, tell = os.pipe()
        try:
            order = make_order(job, cluster, cluster_id=self._id, state_file=self._state)
            self._changes = order.changes
            order_file = job.directory / layout.CLUSTER_ORDER
            whole_json(str(order_file), orders.to_plain(order))
            self._keeper = self._start(order_file, tell)
            os.close(tell)  # now only the keeper holds it, and its end closes the pipe
            tell = -1
            self._wait_until_ready(ready)
        except BaseException:
            self._end_everything()
            raise
        finally:
            for descriptor in {ready, tell} - {-1}:
                os.close(descriptor)

    def poll(self) -> list[HostEnding] | None:
        """How each host ended; None while ranks run."""
        assert self._keeper is not None
        code = self._keeper.poll()
        if code is None:
            return None
        self._end_everything()
        self._report_missed_faults()
        code = 128 - code if code < 0 else code
        tail = log_tail(self._job.directory, layout.CLUSTER_LOG)
        ended = [self._ending(host, code, tail) for host in self._hosts]
        if code == 0 or any(host.failures for host in ended):
            return ended
        reason = f"the virtual cluster broke down: {tail[-1] if tail else f'its keeper ended with code {code}'}"
        return [replace(host, reason=reason) for host in ended]

    def cancel(self, grace_s: float) -> None:
        """Ask the keeper to end all hosts; kill what is left ``KEEPER_EXTRA_S`` after the grace time, at once for 0."""
        assert self._keeper is not None
        if self._keeper.poll() is None and grace_s > 0:
            self._keeper.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(grace_s + KEEPER_EXTRA_S)
        self._end_everything()

    def _start(self, order_file: Path, tell: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "allpull.rehearse.host.keeper", str(order_file), "--ready", str(tell)]
        with open(self._log, "ab", opener=no_follow) as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log if self._job.program is None else None,  # the user sees what the command prints
                stderr=log,
                env=with_secrets(self._job, {**environment(self._job.spec, os.environ), ownership.TAG: self._id}),
                pass_fds=(tell,),
                start_new_session=True,  # we pass Ctrl-C on, once, as SIGTERM
            )

    def _wait_until_ready(self, ready: int) -> None:
        readable, _, _ = select.select([ready], [], [], READY_S)
        try:
            report = json.loads(os.read(ready, 65536)) if readable else {}
        except ValueError:
            report = {}
        if "hosts" in report:
            return
        if "error" in report:
            raise (MissingPart if report["missing"] else AllpullError)(report["error"], hint=report["hint"])
        tail = log_tail(self._job.directory, layout.CLUSTER_LOG)
        raise AllpullError(
            f"the virtual cluster could not be made: {tail[-1] if tail else 'its keeper printed nothing'}",
            hint=f"see {self._log}",
        )

    def _end_everything(self) -> None:
        ownership.end_all(self._id)
        if self._keeper is not None:
            self._keeper.wait()
        ownership.release(self._state)

    def _report_missed_faults(self) -> None:
        missed = [one["kind"] for one in not_struck(self._job.directory / layout.CLUSTER_TRUTH, self._changes)]
        if missed:
            self._say(f"the job ended before these faults were to strike: {', '.join(missed)}")

    def _ending(self, host: str, code: int, tail: tuple[str, ...]) -> HostEnding:
        """How ``host`` ended; ranks that failed before they had a log get the end of the cluster's log, ``tail``.

        ``code`` is the keeper's exit code, for a host that was killed before it could write its own.
        """
        written = agent_ending(self._job.directory, host)
        ended = read_host_ending(self._job.directory, host, code if written is None else written.code)
        failures = tuple(one if one.log_tail else replace(one, log_tail=tail) for one in ended.failures)
        return replace(ended, failures=failures, log_tail=tail)
