"""torch's elastic agent, in step with those of the other hosts: it starts the ranks of this one, and starts them again.

Alone, it restarts what fails here and counts that, and it ends when its own ranks do. Here a restart that any host
calls counts on all, so that the last one fails on all, and ranks that have ended well are kept in mind until those of
every host have: until then they may be needed again.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Sequence

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.launcher.api import LaunchConfig

from allpull.observe.agent.rendezvous import AGAIN, FAILED, FixedHosts
from allpull.observe.process import WARNED

ROLE = "default_role"  # torch's name for the ranks where there is one kind of them
POLL_EVERY_S = 0.1
BARRIER_S = 30.0  # at the end: all hosts have said already that their ranks ended well


class ElasticAgent(LocalElasticAgent):
    """The agent of one of several hosts. ``failures`` are those of its ranks, by rank, that ended this round here."""

    def __init__(self, spec: WorkerSpec, hosts: FixedHosts, **options: Any) -> None:
        super().__init__(spec, **options)
        self._hosts = hosts
        self.failures: Dict[int, ProcessFailure] = {}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """How the ranks are, which torch asks ten times a second; an override, for torch leaves no other seam.

        Where another host called a restart, or has none left, they count as failed, by nobody's fault. Where they have
        ended well, and others not yet, they count as running.

        Raises:
            Apart: host 0 is gone.
        """
        result: RunResult = super()._monitor_workers(worker_group)
        self.failures = result.failures
        if result.state == WorkerState.SUCCEEDED:
            self._hosts.finished()
        elif result.state != WorkerState.HEALTHY:
            if any(failure.exitcode == WARNED for failure in result.failures.values()):
                self._remaining_restarts = 0  # they saved and stopped as they were asked to, which is no failure
            return result
        outcome = self._hosts.outcome()
        if outcome == FAILED:
            self._remaining_restarts = 0  # as on the host that says so
        if outcome in (AGAIN, FAILED):
            return RunResult(state=WorkerState.FAILED)
        return result if outcome else RunResult(state=WorkerState.HEALTHY)


def elastic_agent(command: Sequence[str], ranks: int, hosts: FixedHosts, *, restarts: int, logs: str) -> ElasticAgent:
    """The agent that runs Python with ``command`` as ``ranks`` ranks of this host, and again ``restarts`` times.

    ``logs`` is an empty folder for what it leaves.
    """
    logs_specs = DefaultLogsSpecs(log_dir=logs)
    # what this version of torch does by default; it would make a folder if it were given none
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=ranks, logs_specs=logs_specs)
    spec = WorkerSpec(
        role=ROLE,
        local_world_size=ranks,
        entrypoint=sys.executable,
        args=tuple(command),
        rdzv_handler=hosts,
        max_restarts=restarts,
        monitor_interval=POLL_EVERY_S,
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
    """The option ``name`` of ``config``, as a keyword; none where this version of torch does not know it."""
    return {name: getattr(config, name)} if hasattr(config, name) else {}
