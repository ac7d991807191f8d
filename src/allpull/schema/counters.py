"""``counters/<host>.jsonl``: a header line, then one line per sample of the host's sidecar.

Everything that grows is cumulative, so that a lost sample loses resolution and no bytes.
"""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record
from allpull.schema.probes import Ping
from allpull.schema.steps import Clock


class CountersHeader(Record):
    """First line of a counters file."""

    schema_: str = Field(alias="schema")
    host: str
    boot_id: str | None = None
    clock: Clock
    interval_ns: int = Field(gt=0)
    sources: list[str] = Field(default_factory=list, description="sources of the numbers")
    no_counters: str | None = Field(
        None, description="why ranks and network interfaces are not counted, if they are not"
    )
    marks_last: bool = Field(False, description="the last sample has `last`; false: an older sidecar, which marks none")


class RankCounters(Record):
    """One rank with its helper processes (loader workers and other children), summed."""

    processes: int = Field(ge=0)
    cpu_ns: int | None = Field(None, ge=0, description="user and system time")
    memory_bytes: int | None = Field(None, ge=0, description="resident set")
    threads: int | None = Field(None, ge=0)
    switches: int | None = Field(None, ge=0, description="context switches")
    queued_ns: int | None = Field(None, ge=0, description="time that runnable threads waited for a CPU, summed")
    read_bytes: int | None = Field(None, ge=0, description="read through system calls, cached or not")
    write_bytes: int | None = Field(None, ge=0)
    read_calls: int | None = Field(None, ge=0)
    write_calls: int | None = Field(None, ge=0)
    storage_read_bytes: int | None = Field(None, ge=0, description="read from storage: not from the page cache")
    storage_write_bytes: int | None = Field(None, ge=0)


class NicCounters(Record):
    """One network interface, or one port of an InfiniBand or RoCE device, since boot."""

    received_bytes: int = Field(ge=0)
    sent_bytes: int = Field(ge=0)


class LinkCounters(Record):
    """TCP connections of ranks to one other host, summed."""

    local: str = Field(description="address of this host on that route")
    sent_bytes: int = Field(ge=0, description="sent and acknowledged")
    busy_ns: int = Field(ge=0, description="time with data sent and not yet acknowledged")
    retransmits: int = Field(ge=0, description="segments that were sent again")
    rtt_ns: int = Field(ge=0, description="smoothed round trip, the longest of these connections")


class GpuCounters(Record):
    """One accelerator at one moment, from its driver; energy is cumulative."""

    busy_share: float | None = Field(None, ge=0, le=1)
    memory_used_bytes: int | None = Field(None, ge=0)
    clock_hz: int | None = Field(None, ge=0, description="clock of the processors")
    power_w: float | None = Field(None, ge=0)
    energy_j: float | None = Field(None, ge=0, description="since the driver was loaded")
    temperature_c: float | None = None


class CounterSample(Record):
    """One sample of the host and its ranks."""

    t_ns: int
    last: bool = Field(False, description="the sidecar took it as its ranks had ended, and no other one follows")
    cpu_ns: int | None = Field(None, ge=0, description="busy time of all CPUs of the host since boot")
    idle_ns: int | None = Field(None, ge=0)
    memory_used_bytes: int | None = Field(None, ge=0)
    load_1min: float | None = Field(None, ge=0)
    ranks: dict[str, RankCounters] = Field(default_factory=dict)
    nics: dict[str, NicCounters] = Field(default_factory=dict)
    gpus: dict[str, GpuCounters] = Field(default_factory=dict)
    links: dict[str, LinkCounters] = Field(default_factory=dict, description="by address of the other host")
    against: str | None = Field(None, description="host that answered the pings")
    pings: list[Ping] = Field(
        default_factory=list,
        description="pings to host `against` since the previous sample, each [sent, received, answered, back] in ns"
        " of the monotonic clocks, then the same four of the real-time clocks; sent and back by the clocks of this"
        " host, received and answered by those of `against`",
    )
