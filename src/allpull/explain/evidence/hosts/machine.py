"""The machine that a window ran on, from counters and host records: CPUs, accelerators, reading, connections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.coverage import recording_overhead
from allpull.analyse.host_load import other_cpus
from allpull.analyse.io import steady_rates
from allpull.analyse.steps.grid import Floats, of_steps
from allpull.rundir.read.run import RunData
from allpull.schema.events import InputShapes, Locality
from allpull.units import NS_PER_S

SENSORS = ("clock_hz", "power_w", "temperature_c")
MOST_CPUS, LONGEST_LIST = 4096, 16_384  # of a host, and characters: lists are read from records
SPAN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
OTHER_PROGRAMS = 0.15  # of the CPUs: the sidecar, the agent and the system take a few percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The TCP connections from one host to another, over the ``seconds`` of a window that were sampled.

    ``bytes_per_s``: sent ÷ time in which data was sent and not yet acknowledged. Several connections at once share a
    link and are each counted, so it is at most the rate of the link.
    """

    source: str
    target: str
    seconds: float
    sent_bytes: int
    bytes_per_s: float
    busy_share: float
    retransmits: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """The machine of one run; None or empty: not measured.

    ``hosts``: of each rank. ``queued_s`` and ``cpu_s`` (ranks,): seconds per second that the threads of a rank and its
    helpers waited for a CPU, and that they had one. ``cpus`` are those of each host that ranks may use.
    ``logical``: host → CPUs that it has; ``bound``: rank → those on which it may run, at last.
    ``other_cpu_s``: host → CPUs that programs beside the job keep busy. ``started``: the largest number of processes of
    a rank, itself included. ``gpus``: host → names of its accelerators.
    ``localities``: rank → how near its CPUs are to its own. ``input_shapes``: counts of the rank that met most.
    ``sensors``: clock_hz, power_w and temperature_c → median over accelerators in each step, (steps,), NaN where none
    was sampled; those never sampled are absent. ``device_busy_share``: of the time, in which a kernel ran on the
    accelerators that had any, by their driver. ``precision`` and ``compiled``: the arithmetic that allpull's own
    trainer was configured with, and compilation. ``autocast``: the dtype that most steps of devices have.
    ``uses_gloo``: ranks are known to exchange by Gloo. ``uses_deepspeed``: a rank imported it.
    """

    hosts: tuple[str, ...]
    is_rehearsal: bool = False
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    localities: Mapping[int, Locality] = field(default_factory=dict)
    input_shapes: tuple[InputShapes, ...] = ()
    sensors: Mapping[str, Floats] = field(default_factory=dict)
    device_busy_share: float | None = None
    precision: str | None = None
    autocast: str | None = None
    compiled: bool | None = None
    vector: tuple[str, ...] = ()
    torch_vector: str | None = None
    cpus: Mapping[str, float] | None = None
    logical: Mapping[str, int] = field(default_factory=dict)
    bound: Mapping[int, frozenset[int]] = field(default_factory=dict)
    queued_s: Floats | None = None
    cpu_s: Floats | None = None
    other_cpu_s: Mapping[str, float] = field(default_factory=dict)
    started: int | None = None
    connections: tuple[Connection, ...] = ()
    round_trip_s: float | None = None
    uses_gloo: bool = False
    uses_deepspeed: bool = False
    read_bytes_per_s: float | None = None
    storage_read_bytes_per_s: float | None = None
    recording_share: float | None = None

    @property
    def accelerators(self) -> tuple[str, ...]:
        """The kinds of accelerators of all hosts, each once."""
        return tuple(dict.fromkeys(name for names in self.gpus.values() for name in names))

    @property
    def host_names(self) -> tuple[str, ...]:
        """Every host once, in the order of ranks."""
        return tuple(dict.fromkeys(self.hosts))

    def ranks_of(self, host: str) -> tuple[int, ...]:
        """The ranks of ``host``."""
        return tuple(rank for rank, name in enumerate(self.hosts) if name == host)

    def busy_share(self, host: str) -> float | None:
        """Share of the CPUs of ``host`` that its ranks and their helpers keep busy; None: not known."""
        cpus = None if self.cpus is None else self.cpus.get(host)
        if cpus is None or self.cpu_s is None:
            return None
        return float(self.cpu_s[list(self.ranks_of(host))].sum()) / cpus

    def other_share(self, host: str) -> float | None:
        """Share of the CPUs of ``host`` that programs beside the job keep busy; None: not known."""
        cpus = None if self.cpus is None else self.cpus.get(host)
        return None if cpus is None or host not in self.other_cpu_s else self.other_cpu_s[host] / cpus

    def disturbed(self, hosts: Iterable[str]) -> dict[str, float]:
        """Those of ``hosts`` of which other programs keep a good part of the CPUs busy, and how much."""
        shares = {host: self.other_share(host) or 0.0 for host in hosts}
        return {host: busy for host, busy in shares.items() if busy >= OTHER_PROGRAMS}


def machine_of(run: RunData, steps: NDArray[np.int64]) -> Machine:
    """The machine of ``run`` during ``steps``, as far as it is known."""
    ranks = run.record.ranks
    recorded = of_steps(run.steps.select("rank", "step", "begin_ns", "end_ns", "recording_ns"), steps)
    spans = recorded.group_by("rank").agg(pl.col("begin_ns").min(), pl.col("end_ns").max())
    inside = _inside(run.counters, spans)
    reading = steady_rates.reading(run.counters, spans, ranks)
    hosts = tuple(run.headers[rank].host if rank in run.headers else "" for rank in range(ranks))
    known = {host.host: host for host in run.hosts}
    cpus = {
        name: float(min(of.cpu.quota or np.inf, of.cpu.usable or of.cpu.logical or np.inf))
        for name, of in known.items()
    }
    vectors = [set(of.cpu.vector) for of in run.hosts]
    trained = _trained(run)
    compiled = trained.get("compile")
    return Machine(
        hosts=hosts,
        is_rehearsal=run.record.kind == "rehearse",
        gpus={host.host: tuple(host.gpus) for host in run.hosts},
        localities={rank: log.localities[-1] for rank, log in run.events.items() if log.localities},
        input_shapes=max((log.input_shapes for log in run.events.values()), key=_most_shapes, default=()),
        sensors=_sensors(run.gpus, recorded, steps.size, hosts),
        device_busy_share=_device_busy_share(run.gpus, _of_hosts(spans, hosts)),
        precision=trained.get("precision"),
        autocast=_autocast(run, steps),
        compiled=None if compiled is None else compiled != "none",
        vector=tuple(sorted(set.intersection(*vectors))) if vectors else (),
        torch_vector=run.record.versions.get("torch_cpu") or run.record.environment.get("ATEN_CPU_CAPABILITY"),
        cpus={name: count for name, count in cpus.items() if np.isfinite(count)} or None,
        logical={name: of.cpu.logical for name, of in known.items() if of.cpu.logical is not None},
        bound=_bound(run),
        queued_s=_rates(inside, "queued_ns", ranks),
        cpu_s=_rates(inside, "cpu_ns", ranks),
        other_cpu_s=other_cpus(run, _of_hosts(spans, hosts)),
        started=_most(inside, "processes"),
        connections=_connections(run.links, _of_hosts(spans, hosts)),
        round_trip_s=_round_trip_s(run.pings),
        uses_deepspeed=any("deepspeed" in one.unobserved for log in run.events.values() for one in log.process_groups),
        uses_gloo={log.process_groups[-1].backend for log in run.events.values() if log.process_groups} == {"gloo"},
        read_bytes_per_s=reading.read_bytes_per_s,
        storage_read_bytes_per_s=reading.storage_read_bytes_per_s,
        recording_share=recording_overhead(recorded).share,
    )


def _bound(run: RunData) -> dict[int, frozenset[int]]:
    """Rank → the CPUs on which it might run when it ended, or else when it began."""
    lists = {rank: header.cpus for rank, header in run.headers.items()}
    lists |= {rank: log.end.cpus for rank, log in run.events.items() if log.end is not None and log.end.cpus}
    return {rank: cpus for rank, text in lists.items() if text and (cpus := _cpus_in(text))}


def _cpus_in(text: str) -> frozenset[int]:
    """The CPUs below ``MOST_CPUS`` that a recorded list names; whatever it holds, each is counted once.

    >>> sorted(_cpus_in("0-2,8,1-2")), len(_cpus_in("0-99999," * 1000))
    ([0, 1, 2, 8], 4096)
    """
    cpus = set[int]()
    counted = 0
    for first, last in sorted((int(first), int(last or first)) for first, last in SPAN.findall(text[:LONGEST_LIST])):
        cpus.update(range(max(first, counted), min(last + 1, MOST_CPUS)))
        counted = max(counted, last + 1)
    return frozenset(cpus)


def _most_shapes(counts: tuple[InputShapes, ...]) -> int:
    return max((one.shapes for one in counts), default=-1)


def _device_busy_share(gpus: pl.DataFrame, spans: Mapping[str, tuple[int, int]]) -> float | None:
    """The mean of what drivers counted within the spans of hosts; None: nothing was counted, or all were idle."""
    sampled = gpus.drop_nulls("busy_share")
    busy: list[float] = []
    for host, (begin_ns, end_ns) in spans.items():
        inside = sampled.filter(pl.col("host") == host, pl.col("t_ns").is_between(begin_ns, end_ns))
        of_each = inside.group_by("gpu").agg(pl.col("busy_share").mean())
        busy += of_each.filter(pl.col("busy_share") > 0)["busy_share"].to_list()
    return sum(busy) / len(busy) if busy else None


def _trained(run: RunData) -> dict[str, str]:
    """Text options of allpull's own trainer; empty for a script of the user, whose options are not known."""
    options = run.record.spec.get("train") if run.record.kind == "train" else None
    if not isinstance(options, dict):
        return {}
    return {name: value for name, value in options.items() if isinstance(value, str)}


def _autocast(run: RunData, steps: NDArray[np.int64]) -> str | None:
    """The dtype of autocast that most device steps in ``steps`` have; None: they have none."""
    known = [
        one.autocast for log in run.events.values() for one in log.device_steps if steps[0] <= one.step <= steps[-1]
    ]
    return Counter(known).most_common(1)[0][0] if known else None


def _inside(samples: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The samples of counters within each rank's span."""
    joined = samples.join(spans, on="rank")
    return joined.filter(pl.col("t_ns").is_between(pl.col("begin_ns"), pl.col("end_ns"))).sort("rank", "t_ns")


def _sensors(gpus: pl.DataFrame, recorded: pl.DataFrame, steps: int, hosts: tuple[str, ...]) -> dict[str, Floats]:
    """Sensor → its median over accelerators in each step, (steps,); a host's steps are those of its first rank."""
    if gpus.is_empty():
        return {}
    first = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    of_first = (
        recorded.filter(pl.col("rank").is_in(list(first.values()))).sort("step").partition_by("rank", as_dict=True)
    )
    rows = []
    for host, samples in gpus.group_by("host"):
        if host[0] not in first:
            continue
        begins = of_first.get((first[str(host[0])],), recorded.clear())
        end_ns = begins["end_ns"].max()
        place = np.searchsorted(begins["begin_ns"].to_numpy(), samples["t_ns"].to_numpy(), side="right") - 1
        placed = samples.with_columns(pl.Series("place", place))
        rows.append(placed.filter(pl.col("place") >= 0, pl.col("t_ns") <= end_ns))
    if not rows:
        return {}
    by_step = pl.concat(rows).group_by("place").agg(pl.col(SENSORS).median())
    medians = {}
    for name in SENSORS:
        known = by_step.drop_nulls(name)
        if known.height:
            values = np.full(steps, np.nan)
            values[known["place"].to_numpy()] = known[name].to_numpy()
            medians[name] = values
    return medians


def _rates(inside: pl.DataFrame, counter: str, ranks: int) -> Floats | None:
    """Growth of ``counter`` (ns) per second by rank; None unless each rank has two samples. A drop is no growth."""
    if counter not in inside.columns:
        return None
    by_rank = (
        inside.drop_nulls(counter)
        .group_by("rank")
        .agg(
            pl.col(counter).cast(pl.Float64).diff().clip(lower_bound=0).sum().alias("growth"),
            (pl.col("t_ns").last() - pl.col("t_ns").first()).alias("ns"),
        )
        .filter(pl.col("ns") > 0)
        .sort("rank")
    )
    if by_rank.height < ranks:
        return None
    rates: Floats = (by_rank["growth"] / by_rank["ns"]).to_numpy()
    return rates


def _most(inside: pl.DataFrame, counter: str) -> int | None:
    most = inside[counter].max()
    return most if isinstance(most, int) else None


def _of_hosts(spans: pl.DataFrame, hosts: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """The common span of the ranks of each host, on its own clock."""
    by_host: dict[str, tuple[int, int]] = {}
    for rank, begin_ns, end_ns in spans.select("rank", "begin_ns", "end_ns").iter_rows():
        if rank < len(hosts):
            before = by_host.get(hosts[rank], (begin_ns, end_ns))
            by_host[hosts[rank]] = (min(before[0], begin_ns), max(before[1], end_ns))
    return by_host


def _connections(links: pl.DataFrame, spans: Mapping[str, tuple[int, int]]) -> tuple[Connection, ...]:
    """The connections between hosts of the job, from the first to the last sample within the span of the source."""
    if links.is_empty():
        return ()
    names = dict(links.select("local", "host").unique().iter_rows())
    connections = []
    for (host, peer), rows in links.sort("t_ns").group_by("host", "peer", maintain_order=True):
        source, target = str(host), names.get(str(peer))
        if target is None or target == source or source not in spans:
            continue
        within = rows.filter(pl.col("t_ns").is_between(*spans[source]))
        if within.height < 2:
            continue
        growth = {
            name: int(within[name].diff().clip(lower_bound=0).sum())
            for name in ("t_ns", "sent_bytes", "busy_ns", "retransmits")
        }
        if growth["busy_ns"] <= 0 or growth["t_ns"] <= 0:
            continue
        connections.append(
            Connection(
                source=source,
                target=target,
                seconds=growth["t_ns"] / NS_PER_S,
                sent_bytes=growth["sent_bytes"],
                bytes_per_s=growth["sent_bytes"] * NS_PER_S / growth["busy_ns"],
                busy_share=growth["busy_ns"] / growth["t_ns"],
                retransmits=growth["retransmits"],
            )
        )
    return tuple(connections)


def _round_trip_s(pings: pl.DataFrame) -> float | None:
    """The median over hosts of their fastest ping; a lower bound on the time of a message and its answer."""
    if pings.is_empty():
        return None
    taken = (pl.col("back_ns") - pl.col("sent_ns")) - (pl.col("answered_ns") - pl.col("received_ns"))
    fastest = pings.select("host", taken.alias("ns")).filter(pl.col("ns") > 0).group_by("host").agg(pl.col("ns").min())
    median = fastest["ns"].median()
    return float(median) / NS_PER_S if isinstance(median, int | float) else None
