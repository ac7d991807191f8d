"""The commands of a virtual network, without running one: every line shaped at both ends, nothing stuck in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.rehearse.host.network import (
    Batch,
    Change,
    Topology,
    Uplink,
    address,
    batches_of,
    payload_bytes_per_s,
    plan,
)

HOSTS = st.integers(1, 12)
RATES = st.integers(8_000, 100_000_000_000)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    hosts = draw(HOSTS)
    order = draw(st.permutations(range(hosts)))
    cuts = sorted(draw(st.lists(st.integers(0, hosts), max_size=3)))
    groups = [order[low:high] for low, high in zip(cuts, cuts[1:], strict=False) if high > low]
    return Topology(
        links_bits_per_s=tuple(draw(RATES) for _ in range(hosts)),
        uplinks=tuple(Uplink(hosts=tuple(group), bits_per_s=draw(RATES)) for group in groups),
    )


def shaped(batches: list[Batch]) -> dict[tuple[int | None, str], int]:
    """(namespace, interface) → bits/s of its token bucket."""
    found: dict[tuple[int | None, str], int] = {}
    for batch in batches:
        for line in batch.lines if batch.tool == "tc" else ():
            match = re.fullmatch(r"qdisc \w+ dev (\w+) root .* rate (\d+)bit burst \d+ limit \d+", line)
            assert match, line
            assert (batch.host, match[1]) not in found
            found[batch.host, match[1]] = int(match[2])
    return found


def ports(batches: list[Batch]) -> dict[str, str]:
    """Interface in the world → bridge that it is a port of."""
    lines = [line for batch in batches if batch.host is None and batch.tool == "ip" for line in batch.lines]
    return {match[1]: match[2] for line in lines if (match := re.fullmatch(r"link set (\w+) master (\w+) up", line))}


@given(topologies())
def test_every_line_is_shaped_once_at_either_end_with_its_rate(topology):
    expected: dict[tuple[int | None, str], int] = {}
    for host, rate in enumerate(topology.links_bits_per_s):
        expected |= {(host, "eth0"): rate, (None, f"h{host}"): rate}
    for switch, uplink in enumerate(topology.uplinks):
        expected |= {(None, f"{end}{switch}"): uplink.bits_per_s for end in ("up", "down")}
    assert shaped(plan(topology)) == expected


@given(st.integers(8_000, 10**13))
def test_tc_has_32_bits_for_the_bytes_that_wait(bits_per_s):
    lines = [line for batch in plan(Topology(links_bits_per_s=(bits_per_s,))) for line in batch.lines if "tbf" in line]
    for line in lines:
        burst, limit = (int(re.search(rf"{name} (\d+)", line)[1]) for name in ("burst", "limit"))
        assert burst < limit < 2**32
    assert len(lines) == 2


@given(topologies())
def test_hosts_reach_each_other_over_their_own_switch_or_the_core(topology):
    bridges = ports(plan(topology))
    behind = {host: switch for switch, uplink in enumerate(topology.uplinks) for host in uplink.hosts}
    for host in range(len(topology.links_bits_per_s)):
        assert bridges[f"h{host}"] == (f"switch{behind[host]}" if host in behind else "core")
    for switch in range(len(topology.uplinks)):
        assert (bridges[f"up{switch}"], bridges[f"down{switch}"]) == (f"switch{switch}", "core")


@given(topologies())
def test_names_fit_into_the_kernel_and_are_made_once(topology):
    lines = [line for batch in plan(topology) if batch.host is None for line in batch.lines]
    made = [name for line in lines if line.startswith("link add") for name in re.findall(r"(?:add|name) (\w+)", line)]
    made = [name for name in made if name != "eth0"]
    assert len(set(made)) == len(made)
    assert max(map(len, made)) <= 15


@pytest.mark.parametrize("kind", ["throttle", "throttle-uplink"])
@given(before=RATES, after=RATES)
def test_a_segment_that_waits_in_a_line_still_fits_after_it_was_slowed_down(kind, before, after):
    """tbf never releases what is larger than its bucket: the line would be dead for good."""
    topology = Topology(links_bits_per_s=(before, before), uplinks=(Uplink(hosts=(0,), bits_per_s=before),))
    segments = [int(line.split()[-1]) for batch in plan(topology) for line in batch.lines if "gso_max_size" in line]
    changed = batches_of(Change(kind=kind, at_s=1.0, number=0, bits_per_s=after), topology)
    bursts = [int(re.search(r"burst (\d+)", line)[1]) for batch in changed for line in batch.lines]
    assert len(segments) == len(bursts) == 2
    assert min(bursts) > max(segments)
    assert set(shaped(changed).values()) == {after}


def test_the_cable_that_is_pulled_is_the_hosts_own():
    topology = Topology(links_bits_per_s=(10**6,) * 3)
    cut = Change(kind="cut", at_s=1.0, number=2)
    assert [(batch.host, batch.lines) for batch in batches_of(cut, topology)] == [(None, ("link set h2 down",))]
    assert batches_of(Change(kind="kill", at_s=1.0, number=2), topology) == []


def test_headers_take_what_they_take_of_a_full_packet():
    """1500 bytes of IP packet with 52 of headers, on 1514 of Ethernet."""
    assert payload_bytes_per_s(8e9) / 1e9 == pytest.approx(1448 / 1514)


def test_every_host_has_an_address_of_its_own_in_one_network():
    addresses = [address(host) for host in range(300)]
    assert len(set(addresses)) == 300
    assert all(re.fullmatch(r"10\.77\.\d{1,3}\.\d{1,3}", one) for one in addresses)
    assert not {"10.77.0.0", "10.77.255.255"} & set(addresses)


def test_the_kernels_own_delay_is_put_behind_the_bucket():
    topology = Topology(links_bits_per_s=(10**6,), latency_s=2e-4)
    delays = [line for batch in plan(topology, "netem") for line in batch.lines if "netem" in line]
    assert delays == ["qdisc add dev eth0 parent 1:1 netem delay 200us limit 100000"]
    assert not any("veth peer name eth0" in line for batch in plan(topology, "relay") for line in batch.lines)
