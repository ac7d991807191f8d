"""A job as a JobSet, or as a TrainJob of Kubeflow's Trainer v2. Pure: nothing is read, started or written here.

Both make one pod per host, numbered by an indexed Job and reachable by name through a headless service. The pods share
a volume, in which pod 0 opens the run directory before any rank starts. torchrun finds its hosts by its own variables
(``PET_…``), which Kubeflow sets and a JobSet is given here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from allpull.errors import BadInput
from allpull.launch.job import Job, environment
from allpull.launch.kubernetes import training
from allpull.observe.rank.command import PYTHON
from allpull.rundir import layout
from allpull.schema.spec import RunSpec

PORT = 29500  # torchrun's own, and Kubeflow's
HOSTS = "ranks"  # the replicated job of a JobSet; the names of its pods begin with it
NODE = "node"  # the replicated job and the container of Kubeflow's torch runtime
JOBSET, TRAINJOB = "jobset.x-k8s.io/v1alpha2", "trainer.kubeflow.org/v1alpha1"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
JOB_UID = "metadata.labels['batch.kubernetes.io/controller-uid']"
"""The same for all pods of one attempt of a job, and of no other job."""

MAX_NAME = 28  # characters: pods append the time, job, index and a random part, and a label holds 63
RESOLVES = "import os, socket; socket.gethostbyname(os.environ['PET_MASTER_ADDR'])"
"""A program of Python that fails until the cluster's DNS knows pod 0."""

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
        "env": [*_torchrun_variables(spec, f"{name}-{HOSTS}-0-0.{name}"), *_variables(job)],
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
                "env": list(_variables(job)),
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
    """What each pod runs: pod 0 opens the run directory, all start their ranks, and pod 0 closes the run."""
    return "\n".join([*(_training_lines(job) if job.program is None else _program_lines(job, job.program)), ""])


def _program_lines(job: Job, program: Sequence[str]) -> Iterator[str]:
    """The script that observes torchrun."""
    spec, python = job.spec, shlex.quote(job.spec.container.python)
    words = [spec.container.python if word == PYTHON else word for word in program]
    opening = [f"--out {_mount(spec)}", f"--name {shlex.quote(spec.name)}", *_observe_options(spec)]
    yield from _opened(spec, f"{python} -m allpull env {' '.join(opening)}")
    yield '. "$opened"'
    yield 'if [ "$PET_NODE_RANK" != 0 ]; then trap - EXIT; fi  # pod 0 closes the run'
    yield from _waited_for(f"{python} -m torch.distributed.run --no-python {shlex.join(words)}")
    yield 'if [ "$PET_NODE_RANK" = 0 ]; then rm -f "$opened"; fi'
    yield 'exit "$code"'


def _training_lines(job: Job) -> Iterator[str]:
    """The script that starts the agent of allpull's trainer; ALLPULL_TRAINING holds the specification."""
    python = shlex.quote(job.spec.container.python)
    yield from _opened(
        job.spec, f"{python} -m {training.__name__} open {_mount(job.spec)} {shlex.join(job.record.command)}"
    )
    yield 'run=$(cat "$opened")'
    yield f"until {python} -c {shlex.quote(RESOLVES)} 2>/dev/null; do"
    yield from _patience("pod 0 has no address")
    yield "done"
    host = '--host-index "$PET_NODE_RANK" --hosts "$PET_NNODES" --name "${HOSTNAME:-$(hostname)}"'
    meeting = '--master "$PET_MASTER_ADDR" --port "$PET_MASTER_PORT"'
    yield from _waited_for(f'{python} -m allpull.observe.agent "$run/{layout.SPEC}" {host} {meeting}')
    yield 'if [ "$PET_NODE_RANK" = 0 ]; then'
    yield '  rm -f "$opened"'
    yield f'  {python} -m {training.__name__} close "$run" "$code"'
    yield "fi"
    yield 'exit "$code"'


def _opened(spec: RunSpec, opening: str) -> Iterator[str]:
    """Pod 0 runs ``opening`` into a file, and all pods wait for that."""
    yield "set -eu"
    yield f'opened={_mount(spec)}/.allpull-"$ALLPULL_JOB_UID"  # one for each attempt of the job'
    yield 'if [ "$PET_NODE_RANK" = 0 ]; then'
    yield f'  {opening} > "$opened.part"'
    yield '  mv "$opened.part" "$opened"'
    yield "fi"
    yield "waited=0"
    yield 'until [ -e "$opened" ]; do  # pod 0 opens the run directory'
    yield from _patience("pod 0 opened no run directory")
    yield "done"


def _patience(failure: str) -> Iterator[str]:
    """One second of a loop that ends the pod with ``failure`` after ``OPEN_S``."""
    yield f'  if [ "$waited" -ge {OPEN_S} ]; then echo "{failure}" >&2; exit 1; fi'
    yield "  waited=$((waited + 1))"
    yield "  sleep 1"


def _waited_for(command: str) -> Iterator[str]:
    """Run ``command`` to its end, with its exit code in ``code``.

    A shell that is process 1 ignores SIGTERM unless it handles it, so it passes it on: ranks may still save.
    """
    yield f"{command} &"
    yield "child=$!"
    yield "trap 'kill -TERM \"$child\" 2>/dev/null || true' TERM"
    yield "code=0"
    yield 'wait "$child" || code=$?'
    yield 'while kill -0 "$child" 2>/dev/null; do  # a signal ended the wait, not the ranks'
    yield "  code=0"
    yield '  wait "$child" || code=$?'
    yield "done"


def _mount(spec: RunSpec) -> str:
    return shlex.quote(spec.kubernetes.mount)


def _command(job: Job) -> list[str]:
    return ["/bin/sh", "-c", _literal(pod_script(job))]


def _literal(text: str) -> str:
    """``text`` escaped: Kubernetes replaces ``$(NAME)`` in commands and variables, and ``$$`` by a dollar sign."""
    return re.sub(r"\$(?=[$(])", "$$", text)


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


def _variables(job: Job) -> Iterator[dict[str, Any]]:
    spec = job.spec
    yield {"name": "ALLPULL_JOB_UID", "valueFrom": {"fieldRef": {"fieldPath": JOB_UID}}}
    for name, value in environment(spec, {}).items():
        yield {"name": name, "value": value}
    if job.program is None:
        yield {"name": training.VARIABLE, "value": _literal(training.as_variable(spec))}
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
