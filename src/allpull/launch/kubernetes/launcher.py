"""The launcher of Kubernetes clusters, which only writes manifests: kubectl knows the cluster and the credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import yaml

from allpull.errors import BadInput, UnknownName
from allpull.launch.job import Job
from allpull.launch.kubernetes.manifest import KINDS
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
        if job.program is None and job.record.kind != "train":
            raise BadInput(
                "Kubernetes manifests are made for commands and for the reference trainer, not for a probe",
                hint="allpull run -n RANKS --launcher kubernetes:jobset --dry-run -- train.py",
            )
        if job.spec.container.image:
            raise BadInput("container.image has no effect in a pod", hint="set kubernetes.image")
        if not job.spec.kubernetes.mount.startswith("/"):
            raise BadInput(f"kubernetes.mount: {job.spec.kubernetes.mount!r} is not absolute", hint="such as /runs")
        return f"{made_for(job)}\n{_yaml(KINDS[self._kind](job))}"

    def submit(self, job: Job) -> NoReturn:
        """Nothing is submitted from here: ``job.prepare`` refuses first."""
        raise NotImplementedError(job.spec.launch.launcher)


class _Blocks(yaml.SafeDumper):  # type: ignore[misc,unused-ignore]  # PyYAML has no types of its own
    """Texts of several lines as literal blocks, which people can read."""


_Blocks.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _yaml(manifest: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(manifest), Dumper=_Blocks, sort_keys=False, allow_unicode=True, width=100)
    return text
