"""The launcher of `rehearse --unshaped`: the same accelerators on this machine, without virtual hosts and links."""

from __future__ import annotations

from allpull.launch.job import Job
from allpull.launch.local import Local, LocalJob
from allpull.rehearse.cluster.faults import AcceleratorFault, MachineFault
from allpull.rehearse.cluster.model import Cluster, truth
from allpull.rehearse.machine_check import check_memory, idle_kinds, tell
from allpull.rundir import layout
from allpull.rundir.write import whole_json


class Unshaped:
    """The launcher of the accelerators of ``cluster`` on any machine that has torch: no root, no Linux needed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._local = Local()

    def plan(self, job: Job) -> str:
        """The command of the ranks' agent, after a comment that names faults without effect.

        Raises:
            BadInput: this machine cannot hold the ranks.
        """
        check_memory(self._cluster, accelerated=True)
        first, *lines = self._local.plan(job).splitlines(keepends=True)
        return "".join([first, *(f"# {line}\n" for line in self._idle()), *lines])

    def submit(self, job: Job) -> LocalJob:
        """Start ``job``.

        Raises:
            BadInput: this machine cannot hold the ranks.
        """
        check_memory(self._cluster, accelerated=True)
        known = truth(self._cluster, acting=AcceleratorFault)
        whole_json(str(job.directory / layout.CLUSTER_TRUTH), {**known, "latency_s": None, "hosts": [], "switches": []})
        for line in self._idle():
            tell(line)
        return self._local.submit(job)

    def _idle(self) -> list[str]:
        kinds = idle_kinds(self._cluster, MachineFault)
        also = f", and these faults do not act: {', '.join(kinds)}" if kinds else ""
        return [f"unshaped: all ranks are on this machine, with its links and clocks{also}"]
