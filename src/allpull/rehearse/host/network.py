"""Connect hosts by links of a set rate: make the commands of ``ip`` and ``tc`` for it, and run them.

Pure from ``Topology`` to ``Batch``; only the functions at the end touch the kernel. Bridges stand in one network
namespace, the world, where no address or name can collide with one of the machine; each host has its own:

    host 0: eth0 ──── h0 ┐
    host 1: eth0 ──── h1 ┴ switch0: up0 ──── down0 ┐
    host 2: eth0 ──── h2 ──────────────────────────┴ core

Every line is a veth pair with a token bucket (tc-tbf(8)) at either end, so each direction has its own rate.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from allpull.errors import AllpullError
from allpull.rehearse.host.namespaces import inside

INTERFACE = "eth0"  # of every host
MASTER_PORT = 29500  # torchrun's; it is free, because no other job uses this network
PREFIX = 16  # 10.77.0.0/16, invisible outside the world
BURST_S = 1e-3  # of line rate: what a message may gain if the link was idle before
MIN_BURST_BYTES = 4096  # two packets
SEGMENT_SHARE = 0.9  # of a burst, the rest being headers. tbf cuts larger segments into packets, and above 100 Mbit/s
# busy cores then fall behind the rate; this way a link carries about 1,000 segments per second, whatever its rate
MAX_SEGMENT_BYTES = 65536  # the kernel's maximum
QUEUE_S = 50e-3  # of line rate, before packets are dropped
MIN_QUEUE_BYTES = 1 << 20
MAX_QUEUE_BYTES = 1 << 31  # tc has 32 bits for it
ETHERNET_BYTES = 14  # what tbf counts of a frame besides the IP packet
MTU_BYTES = 1500
TCP_HEADERS_BYTES = 52  # IPv4 20, TCP 20, timestamps 12
MIN_BITS_PER_S = 8 * 1000  # tc counts whole bytes per second, and slower links are of no use
TCP_RETRIES = 6  # of unacknowledged segments: connections to a host that was cut off end after 30 s, not 15 minutes
TCP_OPTIONS = Path("/proc/sys/net/ipv4")  # of the network namespace of the process that opens it
CONGESTION_CONTROLS = ("cubic", "reno")  # the first that a namespace may choose is used; BBR would probe and pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """Hosts behind one switch, and the rate of the link between it and the core, bits/s each way."""

    hosts: tuple[int, ...]
    bits_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Links as shaped: ``links_bits_per_s`` each way, one per host. ``latency_s`` is one way."""

    links_bits_per_s: tuple[int, ...]
    uplinks: tuple[Uplink, ...] = ()
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change ``at_s`` after the zero of its order; ``number`` is that of the host, the switch or the rank."""

    kind: Literal["throttle", "throttle-uplink", "cut", "kill"]
    at_s: float
    number: int
    bits_per_s: int = 0


Cables = Literal["plain", "netem", "relay"]
"""How hosts are connected: veth pairs, veth pairs with netem, or TAP devices with ``frame_delay.relay`` in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Lines for ``ip -batch`` or ``tc -batch``, in the namespace of ``host`` (None: in the world).

    ``{net3}`` in a line stands for the path of the namespace of host 3.
    """

    host: int | None
    tool: Literal["ip", "tc"]
    lines: tuple[str, ...]


def payload_bytes_per_s(link_bits_per_s: float) -> float:
    """The rate of TCP payload over a link: its rate without headers, which take 4.4 % of full packets.

    >>> round(payload_bytes_per_s(1e9))
    119550859
    """
    share = (MTU_BYTES - TCP_HEADERS_BYTES) / (MTU_BYTES + ETHERNET_BYTES)
    return link_bits_per_s / 8 * share


def address(host: int) -> str:
    """The address of ``host``.

    >>> address(0), address(63)
    ('10.77.0.1', '10.77.0.64')
    """
    return f"10.77.{(host + 1) // 256}.{(host + 1) % 256}"


def plan(topology: Topology, cables: Cables = "plain") -> list[Batch]:
    """All commands that make ``topology`` in empty namespaces, in order; TAP devices must exist already."""
    batches = [Batch(host=None, tool="ip", lines=tuple(_world(topology, cables)))]
    for host, bits_per_s in enumerate(topology.links_bits_per_s):
        lines = (
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none",
            f"link set {INTERFACE} gso_max_size {min(MAX_SEGMENT_BYTES, round(SEGMENT_SHARE * _burst(bits_per_s)))}",
            f"addr add {address(host)}/{PREFIX} dev {INTERFACE}",
            f"link set {INTERFACE} up",
        )
        batches.append(Batch(host=host, tool="ip", lines=lines))
        batches += _shape_link(host, bits_per_s, "add", _burst(bits_per_s))
        if cables == "netem":
            # behind the bucket; the limit is in packets, and only keeps memory finite
            line = f"qdisc add dev {INTERFACE} parent 1:1 netem delay {topology.latency_s * 1e6:.0f}us limit 100000"
            batches.append(Batch(host=host, tool="tc", lines=(line,)))
    for switch, uplink in enumerate(topology.uplinks):
        batches += _shape_uplink(switch, uplink.bits_per_s, "add", _burst(uplink.bits_per_s))
    return batches


def batches_of(change: Change, topology: Topology) -> list[Batch]:
    """Commands that make ``change`` to ``topology``; none for a rank, which the network does not concern.

    A link that gets slower keeps its burst: a waiting segment that is larger than the bucket would never be sent.
    """
    if change.kind == "throttle":
        burst = _burst(max(change.bits_per_s, topology.links_bits_per_s[change.number]))
        return _shape_link(change.number, change.bits_per_s, "change", burst)
    if change.kind == "throttle-uplink":
        burst = _burst(max(change.bits_per_s, topology.uplinks[change.number].bits_per_s))
        return _shape_uplink(change.number, change.bits_per_s, "change", burst)
    if change.kind == "cut":  # the host and the switch both see the link go down
        return [Batch(host=None, tool="ip", lines=(f"link set h{change.number} down",))]
    return []


def rank_variables(rank: int, local_rank: int, ranks: int, local_ranks: int, port: int) -> dict[str, str]:
    """The variables of torchrun for a rank; the rendezvous is at ``port`` of host 0.

    ``local_ranks`` is the number of ranks on its host.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }


def _world(topology: Topology, cables: Cables) -> Iterator[str]:
    behind = {host: switch for switch, uplink in enumerate(topology.uplinks) for host in uplink.hosts}
    yield from _bridge("core")
    for switch in range(len(topology.uplinks)):
        yield from _bridge(f"switch{switch}")
        yield f"link add up{switch} type veth peer name down{switch}"
        yield from _port(f"up{switch}", f"switch{switch}")
        yield from _port(f"down{switch}", "core")
    for host in range(len(topology.links_bits_per_s)):
        if cables != "relay":
            yield f"link add h{host} type veth peer name {INTERFACE} netns {{net{host}}}"
        yield from _port(f"h{host}", f"switch{behind[host]}" if host in behind else "core")


def _bridge(name: str) -> Iterator[str]:
    yield f"link add {name} type bridge"
    yield f"link set {name} addrgenmode none"
    yield f"link set {name} up"


def _port(name: str, bridge: str) -> Iterator[str]:
    # without IPv6 addresses: they are not needed, and their announcements are traffic
    yield f"link set {name} addrgenmode none"
    yield f"link set {name} master {bridge} up"


def _shape_link(host: int, bits_per_s: int, verb: str, burst: int) -> list[Batch]:
    return [
        Batch(host=host, tool="tc", lines=(_shape(INTERFACE, bits_per_s, verb, burst),)),
        Batch(host=None, tool="tc", lines=(_shape(f"h{host}", bits_per_s, verb, burst),)),
    ]


def _shape_uplink(switch: int, bits_per_s: int, verb: str, burst: int) -> list[Batch]:
    ends = (f"up{switch}", f"down{switch}")
    return [Batch(host=None, tool="tc", lines=tuple(_shape(end, bits_per_s, verb, burst) for end in ends))]


def _shape(interface: str, bits_per_s: int, verb: str, burst: int) -> str:
    queue = min(max(MIN_QUEUE_BYTES, round(bits_per_s / 8 * QUEUE_S)), MAX_QUEUE_BYTES)
    return f"qdisc {verb} dev {interface} root handle 1: tbf rate {bits_per_s}bit burst {burst} limit {queue}"


def _burst(bits_per_s: int) -> int:
    return max(MIN_BURST_BYTES, round(bits_per_s / 8 * BURST_S))


def has_netem() -> bool:
    """Whether the kernel can delay packets, tried on the loopback device of this process's network namespace."""
    command = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return False
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)
    return True


def choose_congestion_control(nets: Sequence[int]) -> None:
    """Set the congestion control that most real hosts have, whatever this machine uses."""
    for net in nets:
        with inside(net):
            for name in CONGESTION_CONTROLS:
                with suppress(OSError):
                    (TCP_OPTIONS / "tcp_congestion_control").write_text(name, encoding="ascii")
                    break


def limit_tcp_retries(nets: Sequence[int]) -> None:
    """Let hosts notice within half a minute that another is cut off; else a job hangs until TCP gives up."""
    for net in nets:
        with inside(net), suppress(OSError):  # TCP then gives up when this machine's would
            (TCP_OPTIONS / "tcp_retries2").write_text(str(TCP_RETRIES), encoding="ascii")


def run(batches: Sequence[Batch], nets: Sequence[int]) -> None:
    """Run ``batches``; ``nets`` are descriptors of the hosts' network namespaces.

    Raises:
        AllpullError: the kernel or a tool refused a line.
    """
    paths = {f"net{host}": f"/proc/{os.getpid()}/fd/{net}" for host, net in enumerate(nets)}
    for batch in batches:
        text = "".join(f"{line.format(**paths)}\n" for line in batch.lines)
        with inside(nets[batch.host]) if batch.host is not None else nullcontext():
            done = subprocess.run([batch.tool, "-batch", "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            complaint = " ".join(done.stderr.split())[:300]
            raise AllpullError(
                f"{batch.tool} could not make the virtual network: {complaint}", hint=f"commands: {text[:300]}"
            )
