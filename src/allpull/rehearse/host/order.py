"""The order: the file from which the keeper and the fork server make a virtual cluster. Standard library only."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from allpull.rehearse.host.network import Change, Topology, Uplink

RANK_PLACEHOLDER = "_" * 7
"""The value of RANK in processes that are not ranks: as long as any rank's number may be, and not a number."""

SCHEMA = "allpull.rehearsal-order/1.1"

Zero = Literal["first-step", "start"]
"""The moment from which changes count: every rank has ended its first step, or all ranks were started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """One host: its name, its ranks, and how wrong its wall clock is.

    ``link_bits_per_s`` is the rate that its interface reports, whatever fault the link has from the start.
    """

    name: str
    ranks: tuple[int, ...]
    link_bits_per_s: int
    clock_offset_s: float = 0.0
    clock_drift_ppm: float = 0.0

    @property
    def has_own_clock(self) -> bool:
        """Whether its wall clock differs from the machine's."""
        return self.clock_offset_s != 0 or self.clock_drift_ppm != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All that a virtual cluster is made from.

    ``state_file`` is the owner file of ``ownership.claim``; ``truth_file`` gets the time of each of ``changes``.
    """

    cluster: str
    owner_pid: int
    state_file: str
    truth_file: str
    directory: str
    job_file: str
    module: str
    port: int
    grace_s: float
    hosts: tuple[HostOrder, ...]
    topology: Topology
    zero: Zero = "first-step"
    changes: tuple[Change, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks of all hosts."""
        return sum(len(host.ranks) for host in self.hosts)


def to_plain(order: Order) -> dict[str, Any]:
    """``order`` as values that JSON can hold."""
    return {"schema": SCHEMA, **dataclasses.asdict(order)}


def load(path: Path) -> Order:
    """The order in the file at ``path``, written from ``to_plain``.

    Raises:
        OSError, ValueError, KeyError, TypeError: the file cannot be read, or holds no order.
    """
    plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    plain.pop("schema")
    topology = plain.pop("topology")
    uplinks = tuple(Uplink(hosts=tuple(item["hosts"]), bits_per_s=item["bits_per_s"]) for item in topology["uplinks"])
    return Order(
        **{
            **plain,
            "hosts": tuple(HostOrder(**{**item, "ranks": tuple(item["ranks"])}) for item in plain["hosts"]),
            "changes": tuple(Change(**item) for item in plain["changes"]),
            "topology": Topology(
                links_bits_per_s=tuple(topology["links_bits_per_s"]),
                uplinks=uplinks,
                latency_s=topology["latency_s"],
            ),
        }
    )
