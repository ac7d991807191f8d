"""A job as a JobSet, or as a TrainJob of Kubeflow's Trainer v2. Pure: nothing is read, started or written here.

Both make one pod per host, numbered by an indexed Job and reachable by name through a headless service. The pods share
a volume, in which pod 0 opens the run directory before any rank starts. torchrun finds its hosts by its own variables
(``PET_…``), which Kubeflow sets and a JobSet is given here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from allpull.errors import BadInput
from allpull.launch.job import Job
from allpull.observe.rank.command import PYTHON
from allpull.schema.spec import RunSpec

PORT = 29500  # torchrun's own, and Kubeflow's
HOSTS = "ranks"  # the replicated job of a JobSet; the names of its pods begin with it
NODE = "node"  # the replicated job and the container of Kubeflow's torch runtime
JOBSET, TRAINJOB = "jobset.x-k8s.io/v1alpha2", "trainer.kubeflow.org/v1alpha1"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
JOB_UID = "metadata.labels['batch.kubernetes.io/controller-uid']"
"""The same for all pods of one attempt of a job, and of no other job."""

MAX_NAME = 28  # characters: pods append the time, job, index and a random part, and a label holds 63
OPEN_S = 300  # for pod 0 to open the run directory: its image may still be pulled, others may have it

_NOT_IN_NAME = re.compile(r"[^a-z0-9]+")


def jobset(job: Job) -> dict[str, Any]:
    """The JobSet of ``job``; if a pod fails, the whole job has failed.

    Raises:
        BadInput: an option is missing.
    """
    spec, name = job.spec, job_name(job)
    container = {
        "name": HOSTS,
        "image": _needed(spec, "image"),
        "command": _command(job),
        "env": [*_torchrun_variables(spec, f"{name}-{HOSTS}-0-0.{name}"), *_variables(spec)],
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "volumeMounts": _mounts(spec),
    }
    pod = {"restartPolicy": "Never", **_grace(spec), "containers": [container], "volumes": _volumes(spec)}
    indexed = {"parallelism": spec.launch.hosts, "completions": spec.launch.hosts, "completionMode": "Indexed"}
    one_job = {**indexed, "backoffLimit": 0, "template": {"spec": pod}}
    return {
        "apiVersion": JOBSET,
        "kind": "JobSet",
        "metadata": _metadata(job),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": HOSTS, "replicas": 1, "template": {"spec": one_job}}],
        },
    }


def trainjob(job: Job) -> dict[str, Any]:
    """The TrainJob of ``job``, for a runtime that sets torchrun's variables, as ``torch-distributed`` does.

    Raises:
        BadInput: an option is missing.
    """
    spec = job.spec
    pod = {**_grace(spec), "containers": [{"name": NODE, "volumeMounts": _mounts(spec)}], "volumes": _volumes(spec)}
    replicated = {"name": NODE, "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": TRAINJOB,
        "kind": "TrainJob",
        "metadata": _metadata(job),
        "spec": {
            "runtimeRef": {"name": spec.kubernetes.runtime},
            "trainer": {
                "image": _needed(spec, "image"),
                "command": _command(job),
                "numNodes": spec.launch.hosts,
                "numProcPerNode": spec.launch.ranks // spec.launch.hosts,
                **_resources_per_node(spec),
                "env": list(_variables(spec)),
            },
            "runtimePatches": [
                {
                    "manager": "allpull.github.io/manifest",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        },
    }


KINDS = {"jobset": jobset, "trainjob": trainjob}
"""What follows the colon in ``--launcher kubernetes:jobset`` → how its manifest is made."""


def job_name(job: Job) -> str:
    """The name of the job in Kubernetes: that of the run and the time, so that no two jobs have one."""
    base = _NOT_IN_NAME.sub("-", job.spec.name.lower()).strip("-")
    named = base if base[:1].isalpha() else f"run-{base}"
    time = re.sub(r"[^0-9]", "", job.record.created_utc)[4:]
    return f"{named[:MAX_NAME].strip('-')}-{time}"


def pod_script(job: Job) -> str:
    """What each pod runs: pod 0 opens the run directory, all observe torchrun, and pod 0 closes the run.

    A shell that is process 1 ignores SIGTERM unless it handles it, so it passes it on: ranks may still save.
    """
    spec, mount = job.spec, shlex.quote(job.spec.kubernetes.mount)
    python = shlex.quote(spec.container.python)
    program = [spec.container.python if word == PYTHON else word for word in job.program or ()]
    opening = [f"--out {mount}", f"--name {shlex.quote(spec.name)}", *_observe_options(spec)]
    return "\n".join(
        [
            "set -eu",
            f'lines={mount}/.allpull-"$ALLPULL_JOB_UID".sh  # one for each attempt of the job',
            'if [ "$PET_NODE_RANK" = 0 ]; then',
            f'  {python} -m allpull env {" ".join(opening)} > "$lines.part"',
            '  mv "$lines.part" "$lines"',
            "fi",
            "waited=0",
            'until [ -e "$lines" ]; do  # pod 0 opens the run directory',
            f'  if [ "$waited" -ge {OPEN_S} ]; then echo "pod 0 opened no run directory" >&2; exit 1; fi',
            "  waited=$((waited + 1))",
            "  sleep 1",
            "done",
            '. "$lines"',
            'if [ "$PET_NODE_RANK" != 0 ]; then trap - EXIT; fi  # pod 0 closes the run',
            f"{python} -m torch.distributed.run --no-python {shlex.join(program)} &",
            "child=$!",
            "trap 'kill -TERM \"$child\" 2>/dev/null || true' TERM",
            "code=0",
            'wait "$child" || code=$?',
            'while kill -0 "$child" 2>/dev/null; do  # a signal ended the wait, not the ranks',
            "  code=0",
            '  wait "$child" || code=$?',
            "done",
            'if [ "$PET_NODE_RANK" = 0 ]; then rm -f "$lines"; fi',
            'exit "$code"',
            "",
        ]
    )


def _command(job: Job) -> list[str]:
    """The pod's command; Kubernetes replaces ``$(NAME)`` in it, and ``$$`` by a dollar sign, so these are escaped."""
    return ["/bin/sh", "-c", re.sub(r"\$(?=[$(])", "$$", pod_script(job))]


def _observe_options(spec: RunSpec) -> Iterator[str]:
    """The options of ``allpull env`` that differ from their defaults."""
    defaults = RunSpec()
    for part in ("observe", "watch"):
        own, usual = getattr(spec, part), getattr(defaults, part)
        for name in type(own).__dataclass_fields__:
            value = getattr(own, name)
            if value != getattr(usual, name):
                text = str(value).lower() if isinstance(value, bool) else str(value)
                yield f"--set {shlex.quote(f'{part}.{name}={text}')}"


def _torchrun_variables(spec: RunSpec, master: str) -> list[dict[str, Any]]:
    """What Kubeflow's runtime sets: torchrun reads each of its options from such a variable."""
    return [
        {"name": "PET_NNODES", "value": str(spec.launch.hosts)},
        {"name": "PET_NPROC_PER_NODE", "value": str(spec.launch.ranks // spec.launch.hosts)},
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
        {"name": "PET_MASTER_ADDR", "value": master},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
    ]


def _variables(spec: RunSpec) -> Iterator[dict[str, Any]]:
    yield {"name": "ALLPULL_JOB_UID", "valueFrom": {"fieldRef": {"fieldPath": JOB_UID}}}
    yield {"name": "OMP_NUM_THREADS", "value": str(spec.launch.threads)}
    yield {"name": "PYTHONUNBUFFERED", "value": "1"}
    if spec.launch.interface:
        yield {"name": "GLOO_SOCKET_IFNAME", "value": spec.launch.interface}


def _resources(spec: RunSpec) -> dict[str, Any]:
    """Requests and limits of a host; what is not given is not asked for."""
    asked = spec.kubernetes
    wanted = {"cpu": asked.cpus, "memory": asked.memory, asked.gpu_resource: str(asked.gpus) if asked.gpus else ""}
    given = {name: amount for name, amount in wanted.items() if amount}
    return {"requests": given, "limits": given} if given else {}


def _resources_per_node(spec: RunSpec) -> dict[str, Any]:
    """Nothing where nothing is asked for: of an empty entry, Trainer 2.3 makes one rank per host."""
    resources = _resources(spec)
    return {"resourcesPerNode": resources} if resources else {}


def _mounts(spec: RunSpec) -> list[dict[str, Any]]:
    return [{"name": "runs", "mountPath": spec.kubernetes.mount}, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108


def _volumes(spec: RunSpec) -> list[dict[str, Any]]:
    """Run directories, and shared memory: containers have 64 MB, and workers of a loader pass batches through it."""
    claim = {"claimName": _needed(spec, "claim")}
    return [{"name": "runs", "persistentVolumeClaim": claim}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]


def _grace(spec: RunSpec) -> dict[str, int]:
    return {"terminationGracePeriodSeconds": max(1, round(spec.launch.grace_s))}


def _metadata(job: Job) -> dict[str, Any]:
    namespace = job.spec.kubernetes.namespace
    return {"name": job_name(job), **({"namespace": namespace} if namespace else {})}


def _needed(spec: RunSpec, name: str) -> str:
    value: str = getattr(spec.kubernetes, name)
    if not value:
        meaning = {"image": "torch, allpull and your program in it", "claim": "ReadWriteMany, for run directories"}
        raise BadInput(
            f"kubernetes.{name} is not set", hint=f"add --set kubernetes.{name}=NAME: an existing one, {meaning[name]}"
        )
    return value
