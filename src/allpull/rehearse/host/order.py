"""The order: the file from which the keeper and the fork server make a virtual cluster. Standard library only."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from allpull.rehearse.host.network import Change, Topology, Uplink

RANK_PLACEHOLDER = "_" * 7
"""RANK in processes that are no ranks: long enough for any number, and no number itself."""

SCHEMA = "allpull.rehearsal-order/1.1"

Zero = Literal["first-step", "start"]
"""What changes count from: that every rank has made its first step, or that all ranks were started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """One host: what it is called, which ranks run on it, how wrong its wall clock is.

    ``link_bits_per_s`` is what its interface claims to do, whatever fault the link has from the start.
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

    ``state_file`` is that of ``state.claim``; ``truth_file`` is told when each of ``changes`` happened.
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
    """``order`` as JSON-able values."""
    return {"schema": SCHEMA, **dataclasses.asdict(order)}


def load(path: Path) -> Order:
    """The order in the file at ``path``, which ``to_plain`` gave.

    Raises:
        OSError, ValueError, KeyError, TypeError: it is none.
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
