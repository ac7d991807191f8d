"""The launcher of Kubernetes clusters, which only writes manifests: kubectl knows the cluster and the credentials."""

from __future__ import annotations

from typing import NoReturn

from allpull.errors import BadInput, UnknownName
from allpull.launch.job import Job
from allpull.launch.kubernetes.manifest import KINDS
from allpull.launch.kubernetes.yaml_text import yaml_text
from allpull.launch.shell_script import made_for


class Kubernetes:
    """``kubernetes:jobset`` or ``kubernetes:trainjob``.

    Raises:
        UnknownName: it is neither.
    """

    def __init__(self, kind: str) -> None:
        if kind not in KINDS:
            raise UnknownName("kind of Kubernetes job", kind, KINDS, hint="write --launcher kubernetes:jobset")
        self._kind = kind

    def plan(self, job: Job) -> str:
        """The manifest, as YAML.

        Raises:
            BadInput: it cannot be made of this job; the message says why.
        """
        if job.program is None:
            raise BadInput(
                "Kubernetes manifests are made for commands, not for the reference trainer or a probe",
                hint="allpull run -n RANKS --launcher kubernetes:jobset --dry-run -- train.py",
            )
        if job.spec.container.image:
            raise BadInput("container.image has no effect in a pod", hint="set kubernetes.image")
        if not job.spec.kubernetes.mount.startswith("/"):
            raise BadInput(f"kubernetes.mount: {job.spec.kubernetes.mount!r} is not absolute", hint="such as /runs")
        return f"{made_for(job)}\n{yaml_text(KINDS[self._kind](job))}"

    def submit(self, job: Job) -> NoReturn:
        """Nothing is submitted from here: ``job.prepare`` refuses first."""
        raise NotImplementedError(job.spec.launch.launcher)
