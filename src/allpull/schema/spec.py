"""The resolved specification of one job: all options that a user can set.

Plain dataclasses of the standard library, because every rank reads them and a rank has neither pydantic nor
polars (DESIGN §2). ``config`` builds them from TOML and checks their ``bounds``; a rank reads them back from
JSON with ``from_plain``.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from allpull.schema.option import option
from allpull.schema.trainspec import DataSpec, ModelSpec, ParallelSpec, TrainSpec

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """How ranks are started."""

    launcher: str = option(
        "auto",
        "where ranks run: local, ssh:HOSTS, slurm, mpi, kubernetes:KIND or rehearse:CLUSTER.toml; auto: what this"
        " machine offers",
    )
    ranks: int = option(1, "ranks, one process each", ge=1, le=65536)
    hosts: int = option(1, "hosts, each with the same number of ranks", ge=1, le=65536)
    threads: int = option(1, "OpenMP threads of a rank", ge=1, le=4096)
    port: int = option(0, "port of the rendezvous on this machine; 0: a free one", ge=0, le=65535)
    bind: Literal["none", "cores", "numa"] = option(
        "none", "cores: give each rank of a host its own CPUs; numa: all from one NUMA node as well"
    )
    interface: str = option("", "network interface for Gloo, such as ib0; empty: the one that routes to the first host")
    max_restarts: int = option(0, "how often failed ranks are restarted from the last checkpoint", ge=0, le=1000)
    grace_s: float = option(15.0, "seconds between asking ranks to end and killing them", ge=0.1, le=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSpec:
    """How allpull is run on hosts that ssh reaches."""

    python: str = option("", "Python on those hosts; empty: the same path as here")
    ship: bool = option(False, "first copy allpull's own code there with rsync")
    carry: str = option(
        "",
        "folder of your program, such as . for the working directory, to copy with rsync to hosts that do not share the"
        " run directory; empty: the program is there already",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSpec:
    """Requests to Slurm; most options mean the same as sbatch's option of that name. Empty: not requested.

    The number of hosts is ``launch.hosts``. Inside an existing allocation only ``master`` and ``cpus_per_rank``
    count.
    """

    account: str = option("", "account that the time is charged to")
    partition: str = option("", "partition, or several with commas")
    qos: str = option("", "quality of service")
    constraint: str = option("", "features that hosts must have, such as v100")
    reservation: str = option("", "reservation to run in")
    switches: str = option("", "maximum number of leaf switches, and how long to wait for them, such as 1@00:30:00")
    exclusive: bool = option(False, "do not share hosts with other jobs")
    gpus_per_node: str = option("", "accelerators of a host: a number, or type and number, such as v100:4")
    cpus_per_rank: int = option(0, "CPUs of a rank and its loader's workers; 0: launch.threads", ge=0, le=4096)
    mem: str = option("", "memory of a host, such as 64G")
    time: str = option("", "time limit, such as 1:30:00 or 2-00:00:00")
    requeues: int = option(0, "how often the job may be requeued to resume from its checkpoint", ge=0, le=1000)
    signal_s: int = option(
        60, "seconds before the time limit at which a job that may be requeued saves and stops", ge=1, le=3600
    )
    mail: str = option("", "address to notify when the job ends")
    modules: tuple[str, ...] = option((), "modules to load, in order")
    prologue: tuple[str, ...] = option((), "lines of shell to run before the ranks start")
    array: str = option("", "indices of an array such as 0-4%2: as many runs, with seeds train.seed + index")
    lines: tuple[str, ...] = option((), "more options for sbatch, such as --hint=nomultithread")
    master: str = option("{host}", "address of the first host, where {host} stands for its name")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSpec:
    """What a manifest of Kubernetes asks for; a host is a pod. Empty: not requested."""

    image: str = option("", "image with torch, allpull and the program")
    claim: str = option("", "persistent volume claim for run directories, which all pods can write")
    mount: str = option("/runs", "folder in the pods where that volume is mounted")
    namespace: str = option("", "namespace of the job; empty: that of kubectl")
    cpus: str = option("", "CPUs of a host, such as 16")
    memory: str = option("", "memory of a host, such as 64Gi")
    gpus: int = option(0, "accelerators of a host", ge=0, le=1024)
    gpu_resource: str = option("nvidia.com/gpu", "name of the accelerators as a resource")
    runtime: str = option("torch-distributed", "training runtime of a TrainJob")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The container that ranks run in; none without an image."""

    runtime: Literal["apptainer", "singularity"] = option("apptainer", "program that runs the container")
    image: str = option("", "image: a file, or a reference such as docker://…; empty: no container")
    binds: tuple[str, ...] = option((), "folders to mount inside, as source or source:destination[:ro]")
    options: tuple[str, ...] = option((), "more options of `apptainer exec`, such as --nv")
    python: str = option("python3", "Python inside the container, with allpull and torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSpec:
    """What is recorded, and how much."""

    counters: bool = option(True, "sample CPU, memory, I/O and network with one sidecar per host")
    counter_interval_s: float = option(1.0, "seconds between counter samples", ge=0.05, le=3600)
    warmup_steps: int = option(5, "first steps of a run that rates leave out", ge=0)
    budget: int = option(
        1 << 30, "bytes of records per rank and file; records are thinned to stay within it", ge=1 << 12
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """Which steps of the user's command are recorded, and which the profiler traces."""

    first_step: int = option(0, "first step that is recorded, counted from 0", ge=0, le=10**12)
    last_step: int = option(0, "step before which recording ends; 0: record to the end", ge=0, le=10**12)
    trace_every: int = option(0, "steps from one profiler window to the next; 0: none", ge=0, le=10**9)
    trace_steps: int = option(3, "steps of a profiler window", ge=1, le=1000)
    trace_first: int = option(5, "first step of the first profiler window", ge=0, le=10**9)
    check_replicas: int = option(
        0,
        "steps between digests of all parameters and buffers, which should agree on all ranks; 0: none",
        ge=0,
        le=10**9,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that defines one training job."""

    name: str = option("train", "name of the run, in its directory and in reports")
    data: DataSpec = field(default_factory=DataSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    parallel: ParallelSpec = field(default_factory=ParallelSpec)
    launch: LaunchSpec = field(default_factory=LaunchSpec)
    ssh: SshSpec = field(default_factory=SshSpec)
    slurm: SlurmSpec = field(default_factory=SlurmSpec)
    kubernetes: KubernetesSpec = field(default_factory=KubernetesSpec)
    container: ContainerSpec = field(default_factory=ContainerSpec)
    observe: ObserveSpec = field(default_factory=ObserveSpec)
    watch: WatchSpec = field(default_factory=WatchSpec)

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.train.global_batch or self.train.batch * self.launch.ranks


def to_plain(spec: Any) -> dict[str, Any]:
    """A specification as JSON-able dictionaries."""
    return dataclasses.asdict(spec)


def from_plain(kind: type[Spec], plain: dict[str, Any]) -> Spec:
    """A specification from the result of ``to_plain``; absent fields take their defaults.

    >>> from_plain(TrainSpec, {"epochs": 3}).epochs
    3
    """
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # Spec is always one of the dataclasses above
        if item.name not in plain:
            continue
        annotation, value = hints[item.name], plain[item.name]
        if typing.get_origin(annotation) is tuple:  # JSON and TOML have arrays there
            values[item.name] = tuple(value)
            continue
        nested = dataclasses.is_dataclass(annotation) and not isinstance(annotation, types.GenericAlias)
        values[item.name] = from_plain(annotation, value) if nested else value
    return kind(**values)
