"""NCCL's log is read in the forms of its versions from 2.4 on, and nothing else in a log is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.rundir.read.nccl_log import Transport, parse_transports, read_transports

FORMS = {
    # Lines of each form as NCCL of that version writes them (github.com/NVIDIA/nccl, issues 226, 302, 367, 707, 952,
    # 1053, 1189, 1538, 1814, 1817, 1925; nccl-tests 29): hosts and addresses are changed, and most lines left out.
    "2.4, sockets": (
        """
n1:45361:45361 [0] NCCL INFO NET/IB : No device found.
n1:45361:45361 [0] NCCL INFO NET/Socket : Using [0]ens3:10.0.0.1<0>
n1:45361:45370 [0] NCCL INFO Ring 00 : 15 -> 0 [send] via NET/Socket/0
n1:45361:45370 [0] NCCL INFO Ring 00 : 11[0] -> 12[0] via direct shared memory
""",
        {("NET", "Socket", 0, False), ("SHM", None, None, False)},
        {0: "ens3"},
    ),
    "2.5, InfiniBand behind a bridge of virtual machines": (
        """
[155] n1:15223:15223 [7] NCCL INFO NET/Socket : Using [0]enp41s0f1:10.0.0.3<0> [1]virbr0:192.168.122.1<0>
[155] n1:15223:15223 [7] NCCL INFO NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_2:1/RoCE ; OOB enp41s0f1:10.0.0.3<0>
[155] n1:15223:15499 [7] NCCL INFO Ring 00 : 155[3d000] -> 157[b2000] via P2P/IPC
[155] n1:15223:15499 [7] NCCL INFO Ring 00 : 155[3d000] -> 0[b2000] [send] via NET/IB/1
""",
        {("P2P", None, None, False), ("NET", "IB", 1, False)},
        {0: "enp41s0f1", 1: "virbr0"},
    ),
    "2.10, GPUDirect": (
        "10-90-43-152:120890:121560 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA\n",
        {("NET", "IB", 5, True)},
        {},
    ),
    "2.18, sockets on loopback": (
        """
n1:3048391:3048566 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
n1:3048391:3048566 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo
n1:3048391:3048566 [0] NCCL INFO NCCL_SOCKET_IFNAME set to lo
n1:3048391:3048566 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
n1:3048391:3048566 [0] NCCL INFO Using network Socket
n1:3048391:3048566 [0] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'lo'
n1:3048391:3048566 [0] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3
n1:3048391:3048566 [0] NCCL INFO Channel 00 : 7[7] -> 3[3] via SHM/direct/direct
""",
        {("NET", "Socket", 3, False), ("SHM", None, None, False)},
        {0: "lo"},
    ),
    "2.22, a plug-in": (
        """
  | 2024-12-04T05:27:44.080Z | algo-1:18064:18134 [7] NCCL INFO Channel 02/0 : 7[7] -> 6[6] via P2P/CUMEM/read
n1:18064:18134 [7] NCCL INFO Channel 03/0 : 47[7] -> 39[7] [receive] via NET/IBext_v8/2
n1:18064:18134 [7] NCCL INFO Using network IBext_v8
n1:18064:18134 [7] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ibp25s0:10.0.0.9<0>
""",
        {("NET", "IBext_v8", 2, False), ("P2P", None, None, False)},
        {},
    ),
    "2.28, the network card of another GPU": (
        """
n1:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm
n1:2620971:2620971 [3] NCCL INFO Assigned GIN plugin GIN_IB_GDAKI to comm
n1:2620971:2620971 [3] NCCL INFO Using network IB
n1:2620971:2620971 [3] NCCL INFO Channel 00/0 : 6[3] -> 38[3] [send] via NET/IB/0(1)/GDRDMA/Shared
n1:2620971:2620971 [3] NCCL INFO Connected all rings, use ring PXN 1 GDR 1
""",
        {("NET", "IB", 0, True)},
        {},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_transports_are_read_in_the_forms_of_all_versions(form: str) -> None:
    text, ways, interfaces = FORMS[form]
    processes = parse_transports(text.encode().splitlines())
    found = {(one.kind, one.network, one.interface, one.direct) for process in processes for one in process.transports}
    assert found == ways
    assert {number: name for one in processes for number, name in one.interfaces.items()} == interfaces


def test_settings_devices_and_networks_are_read() -> None:
    (one,) = parse_transports(FORMS["2.18, sockets on loopback"][0].encode().splitlines())
    assert (one.host, one.pid) == ("n1", 3048391)
    assert one.settings == {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    assert one.networks == {"Socket"}
    devices = [one.devices for one in parse_transports(FORMS["2.22, a plug-in"][0].encode().splitlines())]
    assert set().union(*devices) == {"mlx5_0", "mlx5_1"}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",  # no process
        b"n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via ",
        b"n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via CARRIER/PIGEON",
        b"n1:1:2 [0] NCCL INFO Channel 00/08 :    0   1   2   3",
        b"n1:" + b"9" * 5000 + b":2 [0] NCCL INFO Using network Socket",
        b"\xff\xfe" * 4000,
        b"n1:1:2 [0] NCCL INFO " + b"[0]" * 10_000,
        b"n1:1:2 [0] NCCL INFO NET/Socket : Using " + b"[0]a:" * 10_000,
    ],
)
def test_other_lines_say_nothing(line: bytes) -> None:
    assert parse_transports([line]) == ()


def test_a_log_of_many_processes_and_ways_stays_bounded() -> None:
    lines = [b"n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via NET/plugin%d/0" % name for name in range(1000)]
    (one,) = parse_transports(lines)
    assert len(one.transports) == 64
    assert one.transports <= {Transport(kind="NET", network=f"plugin{name}", interface=0) for name in range(1000)}


def test_logs_outside_the_run_directory_are_not_read(tmp_path: Path) -> None:
    logs = tmp_path / "run" / "job" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-00000.log").write_text("epoch 1\nn1:7:8 [0] NCCL INFO Using network Socket\n")
    (logs / "rank-00000.txt").write_text("n1:8:8 [0] NCCL INFO Using network IB\n")
    (one,) = read_transports(tmp_path / "run", {})
    assert one.networks == {"Socket"}
    (tmp_path / "secret.log").write_text("n1:9:9 [0] NCCL INFO Using network IB\n")
    (logs / "slurm.log").symlink_to(tmp_path / "secret.log")
    (one,) = read_transports(tmp_path / "run", {})
    assert one.networks == {"Socket"}


def test_a_run_without_logs_has_no_transports(tmp_path: Path) -> None:
    assert read_transports(tmp_path, {}) == ()
