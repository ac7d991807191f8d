"""``hosts/<host>.json``: a machine on which ranks ran."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record


class Cpu(Record):
    """Processors that this job could see."""

    model: str | None = None
    architecture: str
    logical: int | None = Field(None, ge=1, description="logical CPUs of the machine")
    physical: int | None = Field(None, ge=1, description="physical cores; fewer than logical means SMT")
    usable: int | None = Field(None, ge=1, description="logical CPUs that this process may run on (affinity)")
    quota: float | None = Field(None, gt=0, description="CPUs that the control group allows; None: no limit")
    vector: list[str] = Field(default_factory=list, description="vector instruction sets, such as avx2")


class Nic(Record):
    """One network interface, or one port of an InfiniBand or RoCE device, such as ``mlx5_0/1``."""

    name: str
    bits_per_s: int | None = Field(None, ge=0, description="None where the driver does not say")


class HostRecord(Record):
    """One host, recorded by its sidecar when the job began."""

    schema_: str = Field(alias="schema")
    host: str
    boot_id: str | None = Field(None, description="hosts with equal boot_id share one monotonic clock")
    os: str
    kernel: str
    cpu: Cpu
    gpus: list[str] = Field(default_factory=list, description="names of the accelerators")
    driver: str | None = Field(None, description="version of the accelerator driver")
    memory_bytes: int | None = Field(None, ge=0)
    nics: list[Nic] = Field(default_factory=list)
    file_system: str | None = Field(None, description="type of the file system that holds the records")
    clock_source: str | None = Field(None, description="the kernel's clock source, such as tsc")
    load_1min: float | None = Field(None, ge=0, description="load average when the job began")
    topology: str | None = Field(
        None,
        description="switches above this host, the leaf last, then its name, with dots, as Slurm's topology has it",
    )
    fingerprint: str = Field(description="hash of CPU, GPU, memory and kernel: equal on equal machines")
