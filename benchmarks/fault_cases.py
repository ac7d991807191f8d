"""The rehearsals of `planted_faults.py`: clusters, what is planted in each, and which rule must say so.

Ranks on one small machine carry a few virtual accelerators. `shrink` is such that no link asks more of the machine
than it has, and steps are long against what its CPUs disturb: healthy clusters hide their communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

STEPS = 40
EVERY = 8  # steps from one evaluation or checkpoint to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where ranks rehearse; ``lines`` are further lines of its TOML file, ``more`` of its accelerator."""

    hosts: int
    ranks_per_host: int
    model: str = "resnet50"
    forward_ms: float = 60.0
    backward_ms: float = 120.0
    link: str = "100 Gbit/s"
    shrink: int = 200
    input_ms: float = 0.0
    lines: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    latency: str = "0 s"

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.hosts * self.ranks_per_host

    def toml(self, faults: Sequence[dict[str, Any]]) -> str:
        """The cluster file with ``faults`` in it."""
        lines = [
            "[cluster]",
            f"hosts = {self.hosts}",
            f"ranks_per_host = {self.ranks_per_host}",
            f'link = "{self.link}"',
            f"shrink = {self.shrink}",
            f'latency = "{self.latency}"',
            *self.lines,
            "[accelerator]",
            f'model = "{self.model}"',
            "batch = 64",
            f"forward_ms = {self.forward_ms}",
            f"backward_ms = {self.backward_ms}",
            "optimizer_ms = 2.0",
            f"input_ms = {self.input_ms}",
            *self.more,
        ]
        for fault in faults:
            lines += ["[[faults]]", *(f"{name} = {_toml(value)}" for name, value in fault.items())]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One finding that must come out; ``ranks`` and ``hosts`` (numbers from 0) None: any are right.

    ``also`` are rules that may say the same in other words.
    """

    rule: str
    ranks: tuple[int, ...] | None = None
    hosts: tuple[int, ...] | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rehearsal; without ``expected`` nothing must be found.

    ``remedied`` is the cluster after what is advised, where that is not ``cluster`` without its faults.
    """

    name: str
    cluster: Cluster
    faults: tuple[dict[str, Any], ...] = ()
    expected: tuple[Expected, ...] = ()
    steps: int = STEPS
    remedied: Cluster | None = None

    @property
    def healthy(self) -> Cluster:
        """What the cluster with its faults is compared with."""
        return self.remedied or self.cluster


FOUR = Cluster(hosts=2, ranks_per_host=2)
EIGHT = Cluster(hosts=4, ranks_per_host=2, forward_ms=100.0, backward_ms=200.0)
SWITCHES = ('[[switch]]\nhosts = [0, 1]\nuplink = "100 Gbit/s"', '[[switch]]\nhosts = [2, 3]\nuplink = "100 Gbit/s"')
SWITCHED = Cluster(hosts=4, ranks_per_host=2, forward_ms=100.0, backward_ms=200.0, lines=SWITCHES)
SHAPES = (FOUR, EIGHT)
SIZES_MS = (20, 50, 120)
LONG_MS = (200, 500, 1500)
LINK_SHARES = (0.08, 0.05, 0.03)
UPLINK_SHARES = (0.04, 0.03, 0.02)
"""What is left of a rate: with more, backward hides what it costs, or this machine's own cores are as slow."""
WIDE_SHARE = 0.065  # longer steps hide more: with 0.08 it would cost these less than 1 % of a step


def cases() -> Iterator[Case]:
    """All of them: single faults at three sizes on two clusters, then pairs, then what belongs to no fault."""
    for cluster in SHAPES:
        yield from _computing(cluster)
        yield from _sequential(cluster)
    yield from _network()
    yield from _common()
    yield from _exchanges()
    yield from _pairs()
    yield claix()


def _computing(cluster: Cluster) -> Iterator[Case]:
    last = cluster.ranks - 1
    for ms in SIZES_MS:
        at = f"{cluster.ranks}r-{ms}ms"
        for where in ("forward", "backward"):
            fault = {"kind": "slow-rank", "rank": 1, "where": where, "delay": f"{ms} ms"}
            yield Case(
                name=f"slow-{where}-{at}",
                cluster=cluster,
                faults=(fault,),
                expected=(Expected(rule="slow-rank", ranks=(1,)),),
            )
        late = {"kind": "slow-rank", "rank": last, "where": "input", "delay": f"{ms} ms"}
        loader = Expected(rule="slow-loader-rank", ranks=(last,))
        yield Case(name=f"slow-input-{at}", cluster=cluster, faults=(late,), expected=(loader,))
        yield Case(
            name=f"slow-loader-{at}",
            cluster=cluster,
            faults=({"kind": "slow-loader", "rank": last, "delay": f"{ms} ms"},),
            expected=(loader,),
        )
        yield Case(
            name=f"slow-loaders-{at}",
            cluster=cluster,
            faults=({"kind": "slow-loader", "delay": f"{ms} ms"},),
            expected=(Expected(rule="input-bound", ranks=()),),
        )
        for where in ("forward", "backward"):
            yield Case(
                name=f"rotating-{where}-{at}",
                cluster=cluster,
                faults=({"kind": "slow-rank", "rotating": True, "where": where, "delay": f"{ms} ms"},),
                expected=(Expected(rule="rotating-imbalance"),),
            )
        yield Case(
            name=f"jitter-{at}",
            cluster=cluster,
            faults=({"kind": "jitter", "std": f"{ms} ms", "seed": ms},),
            expected=(Expected(rule="rotating-imbalance"),),
        )
    for factor in (1.15, 1.4, 2.0):
        yield Case(
            name=f"uneven-{cluster.ranks}r-x{factor}",
            cluster=cluster,
            faults=({"kind": "uneven-shards", "rank": 2, "factor": factor},),
            expected=(Expected(rule="uneven-shards", ranks=(2,)),),
        )


def _sequential(cluster: Cluster) -> Iterator[Case]:
    for ms in LONG_MS:
        for what in ("evaluation", "checkpoint"):
            yield Case(
                name=f"sequential-{what}-{cluster.ranks}r-{ms}ms",
                cluster=cluster,
                faults=({"kind": f"sequential-{what}", "duration": f"{ms} ms", "every": EVERY},),
                expected=(Expected(rule=f"sequential-{what}", ranks=(0,)),),
            )


def _network() -> Iterator[Case]:
    for share, uplink in zip(LINK_SHARES, UPLINK_SHARES, strict=True):
        kept = min(share, WIDE_SHARE)
        slow = {"kind": "slow-link", "host": 1, "factor": share}
        yield Case(
            name=f"slow-link-4r-x{share}",
            cluster=FOUR,
            faults=(slow,),
            expected=(Expected(rule="network-bound", also=("slow-link", "latency-bound")),),  # two hosts have one way
        )
        yield Case(
            name=f"slow-link-8r-x{kept}",
            cluster=EIGHT,
            faults=({**slow, "factor": kept},),
            expected=(Expected(rule="slow-link", hosts=(1,)),),
        )
        yield Case(
            name=f"slow-uplink-8r-x{uplink}",
            cluster=SWITCHED,
            faults=({"kind": "slow-uplink", "switch": 0, "factor": uplink},),
            expected=(Expected(rule="shared-uplink"),),
        )
        thin = Cluster(hosts=2, ranks_per_host=2, link=f"{100 * share:g} Gbit/s")
        yield Case(name=f"thin-network-4r-x{share}", cluster=thin, expected=(Expected(rule="network-bound"),))
        wide = Cluster(hosts=4, ranks_per_host=2, forward_ms=100.0, backward_ms=200.0, link=f"{100 * kept:g} Gbit/s")
        yield Case(name=f"thin-network-8r-x{kept}", cluster=wide, expected=(Expected(rule="network-bound"),))
    throttled = {"kind": "slow-link", "host": 2, "factor": 0.05, "from_s": 4}
    yield Case(
        name="throttled-8r",
        cluster=EIGHT,
        faults=(throttled,),
        expected=(Expected(rule="slow-link", hosts=(2,)),),
    )
    for offset in ("5 s", "-3 s"):
        wrong = {"kind": "clock-offset", "host": 1, "offset": offset, "drift_ppm": 50.0}
        yield Case(name=f"wrong-clock-{offset.replace(' ', '')}", cluster=FOUR, faults=(wrong,))


def _common() -> Iterator[Case]:
    """What all ranks lose alike, or one after the other, and evaluation that is shared badly."""
    stall = {"kind": "pause", "duration": "1500 ms", "every": 12}
    yield Case(name="stall-4r", cluster=FOUR, faults=(stall,), expected=(Expected(rule="common-stall", ranks=()),))
    slower = {"kind": "pause", "duration": "70 ms", "every": 1, "from_step": 22}
    yield Case(name="drift-4r", cluster=FOUR, faults=(slower,), expected=(Expected(rule="drift", ranks=()),))
    in_turn = {"kind": "pause", "duration": "250 ms", "every": 3, "rotating": True}
    yield Case(
        name="pauses-8r", cluster=EIGHT, faults=(in_turn,), expected=(Expected(rule="rotating-imbalance", ranks=()),)
    )
    scored, shared_out = (
        replace(FOUR, more=("epoch_steps = 8", f"evaluation_ms = {duration}", "evaluate_every = 1"))
        for duration in (200.0, 400.0)
    )
    longer = {"kind": "uneven-evaluation", "rank": 3, "duration": "800 ms"}
    yield Case(
        name="uneven-evaluation-4r",
        cluster=scored,
        faults=(longer,),
        expected=(Expected(rule="uneven-evaluation", ranks=(3,)),),
        remedied=shared_out,
    )


def _exchanges() -> Iterator[Case]:
    """How a program exchanges its gradients: a setting of the cluster, which has no twin without it."""
    network = Expected(rule="network-bound", ranks=())
    distant = Expected(rule="latency-bound", ranks=())
    needless = Expected(rule="accumulate-without-no-sync", ranks=())
    overlap = Expected(rule="no-overlap", ranks=())
    short = replace(FOUR, link="8 Gbit/s", forward_ms=30.0, backward_ms=60.0, more=("passes = 4",))
    for name, cluster, expected in (
        ("accumulation-4r", short, (needless, network)),
        ("small-buckets-8r", replace(EIGHT, latency="2 ms", more=("bucket_mib = 4.0",)), (distant, network)),
        ("thin-many-buckets-4r", replace(FOUR, link="5 Gbit/s", more=("bucket_mib = 8.0",)), (network,)),
        ("one-bucket-4r", replace(FOUR, shrink=25, link="16 Gbit/s", more=("bucket_mib = 400.0",)), (overlap, network)),
    ):
        yield Case(name=name, cluster=cluster, expected=expected)


def _pairs() -> Iterator[Case]:
    late = {"kind": "slow-rank", "rank": 3, "where": "backward", "delay": "80 ms"}
    alone = {"kind": "sequential-evaluation", "duration": "300 ms", "every": EVERY}
    loaders = {"kind": "slow-loader", "delay": "60 ms"}
    loader = {"kind": "slow-loader", "rank": 2, "delay": "60 ms"}
    clock = {"kind": "clock-offset", "host": 1, "offset": "5 s", "drift_ppm": 50.0}
    is_late, is_alone = Expected(rule="slow-rank", ranks=(3,)), Expected(rule="sequential-evaluation", ranks=(0,))
    is_loaders, is_loader = Expected(rule="input-bound"), Expected(rule="slow-loader-rank", ranks=(2,))
    for cluster in SHAPES:
        size = f"{cluster.ranks}r"
        for name, faults, expected in (
            ("late+alone", (late, alone), (is_late, is_alone)),
            ("late+loaders", (late, loaders), (is_late, is_loaders)),
            ("loader+alone", (loader, alone), (is_loader, is_alone)),
            ("late+clock", (late, clock), (is_late,)),
        ):
            yield Case(name=f"{name}-{size}", cluster=cluster, faults=faults, expected=expected)
    thin = Cluster(hosts=2, ranks_per_host=2, link="5 Gbit/s")
    network = Expected(rule="network-bound")
    early = {**late, "where": "forward"}  # inside backward, a network as busy as this one would hide it
    yield Case(name="late+thin-4r", cluster=thin, faults=(early,), expected=(is_late, network))
    yield Case(name="loader+thin-4r", cluster=thin, faults=(loader,), expected=(is_loader, network))


def claix() -> Case:
    """What the CLAIX study found by hand: evaluation on rank 0 alone, a starved loader, a thin network."""
    thin = Cluster(hosts=4, ranks_per_host=2, forward_ms=60.0, backward_ms=120.0, link="8 Gbit/s")
    return Case(
        name="claix-like-8r",
        cluster=thin,
        faults=(
            {"kind": "sequential-evaluation", "duration": "1500 ms", "every": EVERY},
            {"kind": "slow-loader", "delay": "40 ms"},
        ),
        expected=(
            Expected(rule="sequential-evaluation", ranks=(0,)),
            Expected(rule="input-bound"),
            Expected(rule="network-bound"),
        ),
    )


def healthy(runs: int) -> Iterator[Case]:
    """Rehearsals without a fault: two sizes, four networks, several rates and lengths of a step."""
    models = ("resnet50", "resnet18", "resnet101", "inception_v3")
    for number in range(runs):
        hosts = 2 if number % 2 == 0 else 4
        longer = 1.0 + 0.25 * (number % 3)
        yield Case(
            name=f"healthy-{number:02d}",
            cluster=Cluster(
                hosts=hosts,
                ranks_per_host=2,
                model=models[number // 2 % len(models)],
                forward_ms=round(50 * hosts / 2 * longer, 1),
                backward_ms=round(100 * hosts / 2 * longer, 1),
                link=("100 Gbit/s", "200 Gbit/s", "400 Gbit/s")[number // 8 % 3],
                shrink=(200, 400, 800)[number // 8 % 3],
            ),
        )
