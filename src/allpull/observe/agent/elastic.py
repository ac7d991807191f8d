"""torch's elastic agent, coordinated with those of the other hosts: it starts and restarts the ranks of this host.

torch's agent counts only the failures of its own ranks, and ends when they do. Here a restart by any host counts on
all hosts, so that restarts run out on all at once, and an agent whose ranks have succeeded waits until those of
every host have: until then its ranks may be restarted.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Sequence

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.launcher.api import LaunchConfig

from allpull.observe.agent.rendezvous import FAILED, RESTART, FixedHosts
from allpull.observe.process import WARNED

ROLE = "default_role"  # torch's name for the only kind of ranks
LOOK_EVERY_S = 0.1
BARRIER_S = 30.0  # at the end, when all hosts have reported success


class ElasticAgent(LocalElasticAgent):
    """The agent of one of several hosts.

    ``failures``, by rank, are those of its ranks that ended this round here; ``finished`` are the ranks that had ended
    with exit code 0 then, and ``by_themselves`` all that had ended before torch ended the others, as far as this
    version of torch tells: a signal that we sent is none that a rank failed by.
    """

    def __init__(self, spec: WorkerSpec, hosts: FixedHosts, **options: Any) -> None:
        super().__init__(spec, **options)
        self._hosts = hosts
        self.failures: Dict[int, ProcessFailure] = {}
        self.finished: List[int] = []
        self.by_themselves: List[int] = []

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """The state of the ranks, polled by torch ten times per second; an override, as torch has no other extension.

        When another host starts a restart, or has none left, our ranks count as failed, without failures of their own.
        When they have succeeded and those of other hosts still run, they count as running.

        Raises:
            HostsDisconnected: host 0 is gone.
        """
        result: RunResult = super()._monitor_workers(worker_group)
        self.failures = result.failures
        self.finished = self._finished(worker_group) if result.failures else []
        if result.state == WorkerState.SUCCEEDED:
            self._hosts.finished()
        elif result.state != WorkerState.HEALTHY:
            if any(failure.exitcode == WARNED for failure in result.failures.values()):
                self._remaining_restarts = 0  # they saved and stopped on request, which is no failure
            return result
        outcome = self._hosts.outcome()
        if outcome == FAILED:
            self._remaining_restarts = 0  # as on the host that reported it
        if outcome in (RESTART, FAILED):
            return RunResult(state=WorkerState.FAILED)
        return result if outcome else RunResult(state=WorkerState.HEALTHY)

    def _start_workers(self, worker_group: WorkerGroup) -> Dict[int, Any]:
        """The processes of the ranks, started; an override, to look at them before torch ends those that are left."""
        started: Dict[int, Any] = super()._start_workers(worker_group)
        context: Any = self._pcontext
        close = context.close

        def look_and_close(*args: Any, **kwargs: Any) -> None:
            context.close = close  # it is called again when nobody is left
            self.by_themselves = self._ended(worker_group, lambda process: process.poll() is not None)
            close(*args, **kwargs)

        context.close = look_and_close
        return started

    def _finished(self, worker_group: WorkerGroup) -> List[int]:
        return self._ended(worker_group, lambda process: process.returncode == 0)

    def _ended(self, worker_group: WorkerGroup, is_wanted: Callable[[Any], bool]) -> List[int]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        ended = (local for local, handler in handlers.items() if is_wanted(handler.proc))
        return sorted(worker_group.workers[local].global_rank for local in ended)


def elastic_agent(command: Sequence[str], ranks: int, hosts: FixedHosts, *, restarts: int, logs: str) -> ElasticAgent:
    """The agent that runs Python with ``command`` as ``ranks`` ranks of this host, with up to ``restarts`` restarts.

    ``logs`` is an empty folder for its files.
    """
    logs_specs = DefaultLogsSpecs(log_dir=logs)
    # the defaults of this version of torch; without logs_specs it would make a folder
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=ranks, logs_specs=logs_specs)
    spec = WorkerSpec(
        role=ROLE,
        local_world_size=ranks,
        entrypoint=sys.executable,
        args=tuple(command),
        rdzv_handler=hosts,
        max_restarts=restarts,
        monitor_interval=LOOK_EVERY_S,
        **_of(config, "numa_options"),
    )
    return ElasticAgent(
        spec,
        hosts,
        logs_specs=logs_specs,
        exit_barrier_timeout=BARRIER_S,
        **_of(config, "shutdown_timeout"),
    )


def _of(config: LaunchConfig, name: str) -> Dict[str, Any]:
    """The option ``name`` of ``config`` as a keyword argument; empty if this version of torch does not have it."""
    return {name: getattr(config, name)} if hasattr(config, name) else {}
