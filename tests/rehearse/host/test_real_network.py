"""Real namespaces and links: rates, shared uplinks, latency and cables, measured with plain sockets.

Each test is a small program of its own, because whoever makes a virtual network leaves the machine's for good. Rates
are low, so that a busy machine can keep them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from allpull.rehearse.host.network import payload_bytes_per_s

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.usefixtures("leaves_nothing")]

MBIT = 20
PAYLOAD = payload_bytes_per_s(MBIT * 1e6)
PRELUDE = """
import json, os, socket, sys, threading, time
from allpull.rehearse.host import keeper, network
from allpull.rehearse.host.namespaces import enter_net, inside, enter_private_namespaces, new_net
from allpull.rehearse.host.network import Change, Topology, Uplink, address, batches_of

def build(topology):
    enter_private_namespaces()
    nets = [new_net() for _ in topology.links_bits_per_s]
    cables = "plain"
    if topology.latency_s:
        cables = "netem" if network.has_netem() else "relay"
        if cables == "relay":
            keeper.start_relay(nets, topology.latency_s)
    network.run(network.plan(topology, cables), nets)
    network.choose_congestion_control(nets)
    return nets

def listen(net):
    with inside(net):
        listener = socket.create_server(("", 5000))
    listener.settimeout(20)
    return listener

def connect(net, host, timeout=20):
    with inside(net):
        caller = socket.create_connection((address(host), 5000), timeout=timeout)
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return caller

def pairs(nets, ways):
    listeners = {to: listen(nets[to]) for to in {to for _, to in ways}}
    found = []
    for source, to in ways:
        caller = connect(nets[source], to)
        found.append((caller, listeners[to].accept()[0]))
    return found

def send(pair, size):
    caller, callee = pair
    def receive():
        left = size
        while left:
            left -= len(callee.recv(min(left, 1 << 16)))
        callee.sendall(b".")
    receiver = threading.Thread(target=receive)
    receiver.start()
    began = time.monotonic()
    caller.sendall(bytes(size))
    caller.recv(1)
    took = time.monotonic() - began
    receiver.join()
    return took

def together(pairs, size):
    took = [None] * len(pairs)
    def one(index):
        took[index] = send(pairs[index], size)
    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(pairs))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return took
"""


def alone(program: str, *prefix: str) -> Any:
    """What ``program`` prints as JSON, run in a process of its own."""
    code = PRELUDE + textwrap.dedent(program)
    command = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_link_carries_its_rate_each_way_at_the_same_time():
    size = int(PAYLOAD / 2)
    took = alone(f"""
        nets = build(Topology(links_bits_per_s=({MBIT}_000_000,) * 2))
        both = pairs(nets, [(0, 1), (1, 0)])
        print(json.dumps(together(both, {size})))
    """)
    assert took == [pytest.approx(0.5, rel=0.1)] * 2


def test_the_kernel_takes_the_fastest_link_that_a_file_may_ask_for():
    took = alone("""
        from allpull.rehearse.cluster.quantity import MAX_RATE_BYTES_PER_S
        nets = build(Topology(links_bits_per_s=(round(8 * MAX_RATE_BYTES_PER_S),) * 2))
        print(json.dumps(send(pairs(nets, [(0, 1)])[0], 1_000_000)))
    """)
    assert took > 0


def test_hosts_share_an_uplink_and_nothing_else():
    """Two flows over one uplink take twice as long as one that stays behind the switch."""
    size = int(PAYLOAD / 4)
    shared, local = alone(f"""
        uplink = Uplink(hosts=(0, 1), bits_per_s={MBIT}_000_000)
        nets = build(Topology(links_bits_per_s=({MBIT}_000_000,) * 4, uplinks=(uplink,)))
        ways = pairs(nets, [(0, 2), (1, 3), (0, 1)])
        print(json.dumps([max(together(ways[:2], {size})), send(ways[2], {size})]))
    """)
    assert shared == pytest.approx(0.5, rel=0.15)
    assert local == pytest.approx(0.25, rel=0.15)


def test_a_link_that_is_throttled_while_full_goes_on_at_its_new_rate():
    size = int(PAYLOAD)
    took = alone(f"""
        topology = Topology(links_bits_per_s=({MBIT}_000_000,) * 2)
        nets = build(topology)
        (way,) = pairs(nets, [(0, 1)])
        slower = batches_of(Change(kind="throttle", at_s=0, number=1, bits_per_s={MBIT // 2}_000_000), topology)
        took = []
        sender = threading.Thread(target=lambda: took.append(send(way, {size})))
        sender.start()
        time.sleep(0.5)
        network.run(slower, nets)
        sender.join()
        print(json.dumps(took[0]))
    """)
    assert took == pytest.approx(1.5, rel=0.15)


def test_a_host_that_is_cut_off_is_reached_no_more_and_the_others_are():
    found = alone("""
        topology = Topology(links_bits_per_s=(20_000_000,) * 3)
        nets = build(topology)
        ways = pairs(nets, [(0, 1), (0, 2)])
        network.run(batches_of(Change(kind="cut", at_s=0, number=2), topology), nets)
        ways[1][0].sendall(b"x")
        ways[1][1].settimeout(0.5)
        try:
            lost = ways[1][1].recv(1) == b""
        except TimeoutError:
            lost = True
        print(json.dumps([lost, send(ways[0], 1000) < 10]))
    """)
    assert found == [True, True]


def test_latency_is_added_both_ways_and_takes_no_rate():
    """Approximate where a process stands in for netem: never less than asked for."""
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("no /dev/net/tun for us, and netem may be missing too")
    size = int(PAYLOAD / 2)
    rtt_s, took_s = alone(f"""
        nets = build(Topology(links_bits_per_s=({MBIT}_000_000,) * 2, latency_s=0.01))
        (way,) = pairs(nets, [(0, 1)])
        times = []
        for _ in range(9):
            began = time.monotonic()
            way[0].sendall(b"x"); way[1].sendall(way[1].recv(1)); way[0].recv(1)
            times.append(time.monotonic() - began)
        print(json.dumps([sorted(times)[4], send(way, {size})]))
    """)
    assert 0.02 <= rtt_s < 0.03
    assert took_s == pytest.approx(0.5 + 0.02, rel=0.2)


def test_hosts_have_no_way_out_and_the_machine_has_no_way_in():
    found = alone("""
        import subprocess
        nets = build(Topology(links_bits_per_s=(20_000_000,) * 2))
        with inside(nets[0]):
            routes = subprocess.run(["ip", "-j", "route"], capture_output=True, text=True).stdout
        print(json.dumps([route["dst"] for route in json.loads(routes)]))
    """)
    assert found == ["10.77.0.0/16"]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="not root, or no setpriv to become less"
)
def test_without_the_right_to_it_a_user_namespace_does():
    """Root without CAP_SYS_ADMIN, as in most containers; an ordinary user takes the same way."""
    unshared = subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False)
    if unshared.returncode != 0:
        pytest.skip("this kernel lets nobody make user namespaces")
    less = ["setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-sys_admin,-net_admin"]
    size = int(PAYLOAD / 4)
    program = f"""
        before = os.readlink("/proc/self/ns/user")
        nets = build(Topology(links_bits_per_s=({MBIT}_000_000,) * 2))
        (way,) = pairs(nets, [(0, 1)])
        print(json.dumps([before != os.readlink("/proc/self/ns/user"), send(way, {size})]))
    """
    own_user_namespace, took = alone(program, *less)
    assert own_user_namespace
    assert took == pytest.approx(0.25, rel=0.15)


def test_what_the_kernel_refuses_is_said_with_the_line_that_it_refused():
    said = alone("""
        from allpull.errors import AllpullError
        nets = build(Topology(links_bits_per_s=(20_000_000,)))
        try:
            network.run([network.Batch(host=0, tool="tc", lines=("qdisc add dev eth9 root pfifo",))], nets)
        except AllpullError as error:
            print(json.dumps([error.message, error.hint]))
    """)
    assert "eth9" in said[0]
    assert "qdisc add dev eth9" in said[1]
