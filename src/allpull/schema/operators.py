"""Operators and kernels of profiler windows: by name, and by the class of their work."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from allpull.schema.base import Record

WorkClass = Literal[
    "convolution",
    "matrix product",
    "attention",
    "norm",
    "pooling",
    "loss",
    "embedding",
    "elementwise",
    "reduction",
    "copy",
    "communication",
    "optimizer",
    "data",
    "other",
]


class Operator(Record):
    """One operator or kernel in a profiler window."""

    name: str
    kind: Literal["operator", "kernel"]
    calls: int = Field(ge=0)
    self_s: float = Field(description="without the operators that it calls")


class OperatorSummary(Record):
    """The operators and kernels with most self time in a profiler window of one rank."""

    rank: int
    first_step: int
    steps: int = Field(ge=1)
    total_s: dict[str, float] = Field(description="kind → self time of all of that kind, not only of those listed")
    operators: list[Operator] = Field(description="by kind, the largest first")


class KernelWindow(Record):
    """One profiler window that was read."""

    rank: int
    first_step: int
    steps: int = Field(ge=1)
    file: str


class ClassTime(Record):
    """All work of one class: on the device, of kernels and its copies; on the CPU, of operators."""

    on: Literal["device", "cpu"]
    work: WorkClass
    calls_per_step: float
    s_per_step: float = Field(description="sum over streams or threads, mean over the windows' steps; cpu: self time")
    share: float = Field(description="of the same sum over all classes")


class KernelTime(ClassTime):
    """One kernel, copy or operator."""

    name: str


class KernelResult(Record):
    """The result of `allpull show RUN --kernels`."""

    schema_: str = Field(alias="schema")
    run: str
    windows: list[KernelWindow] = Field(description="the last of each rank that has one")
    classes: list[ClassTime] = Field(description="device before cpu, the largest first")
    top: list[KernelTime] = Field(description="device before cpu, the largest first")
    notes: list[str] = Field(description="windows that could not be read")
