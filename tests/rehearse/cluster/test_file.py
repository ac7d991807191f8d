"""Cluster files: what is read from one, and that whatever is wrong in one is said, all of it, with its place."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allpull.errors import AllpullError, BadInput, ConfigError
from allpull.rehearse.cluster.faults import KINDS, MachineFault
from allpull.rehearse.cluster.file import load_cluster
from allpull.rehearse.cluster.model import Cluster, to_plain, truth
from allpull.rehearse.ranks import faults as planted
from allpull.rehearse.ranks.schedule import plan

EXAMPLE = """
[cluster]
hosts = 4
ranks_per_host = 2
link = "10 Gbit/s"
shrink = 20

[[switch]]
hosts = [0, 1]
uplink = "10 Gbit/s"

[accelerator]
model = "resnet50"
batch = 64
device = "V100"

[[faults]]
kind = "slow-rank"
rank = 3
where = "backward"
delay = "40 ms"
"""

FAULTS = {
    "slow-rank": 'rank = 3\ndelay = "40 ms"\nwhere = "backward"',
    "jitter": 'std = "5 ms"\ndistribution = "lognormal"',
    "pause": 'every = 10\nduration = "500 ms"',
    "uneven-evaluation": 'rank = 1\nduration = "500 ms"',
    "slow-loader": 'delay = "100 ms"\nrank = 1\nfrom_step = 20',
    "sequential-evaluation": 'every = 20\nduration = "500 ms"',
    "sequential-checkpoint": 'every = 50\nduration = "0.3 s"',
    "uneven-shards": "rank = 0\nfactor = 1.5",
    "slow-link": "host = 2\nfactor = 0.5\nfrom_s = 3",
    "slow-uplink": 'switch = 0\nrate = "1 Gbit/s"',
    "host-cut-off": "host = 1\nfrom_s = 5",
    "kill-rank": "rank = 7\nfrom_s = 5",
    "clock-offset": 'host = 1\noffset = "-5 s"\ndrift_ppm = 100',
}
"""One of each kind, as people write them."""


def cluster(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return load_cluster(path)


def faults_of(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        cluster(tmp_path, text)
    assert caught.value.hint
    return list(caught.value.faults)


def test_the_documented_example(tmp_path):
    found = cluster(tmp_path, EXAMPLE)
    assert found.ranks == 8
    assert [host.name for host in found.hosts] == ["node1", "node2", "node3", "node4"]
    assert found.hosts[3].link_bytes_per_s == 1.25e9
    assert found.switches[0].hosts == (0, 1)
    plain = to_plain(found)
    assert plain["shrink"] == 20.0
    assert plain["accelerator"]["device"] == "V100"
    fault = {"kind": "slow-rank", "rank": 3, "where": "backward", "delay_s": 0.04, "from_step": 0, "from_s": 0.0}
    assert plain["faults"] == [fault]


def test_every_rank_is_on_one_host_in_the_order_of_torchrun(tmp_path):
    found = cluster(tmp_path, EXAMPLE)
    assert [rank for host in found.hosts for rank in host.ranks] == list(range(8))
    assert found.hosts[1].ranks == (2, 3)


def test_every_kind_of_fault_is_read_and_is_in_the_truth_with_its_size(tmp_path):
    assert set(FAULTS) == set(KINDS)
    text = EXAMPLE + "".join(f'[[faults]]\nkind = "{kind}"\n{fields}\n' for kind, fields in FAULTS.items())
    found = cluster(tmp_path, text)
    told = {fault["kind"]: fault for fault in truth(found)["faults"]}
    assert set(told) == set(FAULTS)
    assert told["jitter"]["std_s"] == 0.005
    assert told["jitter"]["rank"] is None
    assert told["sequential-evaluation"]["duration_s"] == 0.5
    assert told["slow-uplink"]["rate_bytes_per_s"] == 125e6
    assert told["slow-link"]["rate_bytes_per_s"] is None
    assert (told["clock-offset"]["offset_s"], told["clock-offset"]["drift_ppm"]) == (-5.0, 100.0)
    assert found.hosts[1].clock_offset_s == -5.0


def test_the_virtual_accelerator_takes_what_it_is_told(tmp_path):
    """Its own reader is the oracle: every fault that is its business, and no other, comes back as a record."""
    text = EXAMPLE + "".join(f'[[faults]]\nkind = "{kind}"\n{fields}\n' for kind, fields in FAULTS.items())
    plain = to_plain(cluster(tmp_path, text))
    assert {fault["kind"] for fault in plain["faults"]} == set(planted.KINDS)
    assert len(planted.read(plain["faults"])) == len(planted.KINDS) + 1
    assert plan(plain).batch == 64


@pytest.mark.parametrize("where", ["forward", "backward", "input"])
def test_a_rotating_rank_rotates(tmp_path, where):
    fault = f'[[faults]]\nkind = "slow-rank"\nrotating = true\nwhere = "{where}"\ndelay = "10 ms"\n'
    plain = to_plain(cluster(tmp_path, EXAMPLE + fault))["faults"][-1]
    assert (plain["rank"], plain["where"]) == (planted.ROTATING, where)
    (read,) = planted.read([plain])
    slow = [
        [rank for rank in range(8) if planted.added([read], planted.Moment(rank=rank, ranks=8, step=step)).backward_s]
        for step in range(3)
    ]
    assert slow == ([[0], [1], [2]] if where == "backward" else [[], [], []])


def test_faults_of_the_accelerator_are_no_truth_where_another_program_runs(tmp_path):
    found = cluster(tmp_path, f'{EXAMPLE}[[faults]]\nkind = "kill-rank"\n{FAULTS["kill-rank"]}\n')
    assert [fault["kind"] for fault in truth(found, acting=MachineFault)["faults"]] == ["kill-rank"]


def test_links_in_the_truth_are_shrunk_and_those_of_a_host_of_its_own(tmp_path):
    told = truth(cluster(tmp_path, f'{EXAMPLE}[[host]]\nindex = 2\nlink = "1 Gbit/s"\n'))
    assert [host["link_bytes_per_s"] for host in told["hosts"]] == [62.5e6, 62.5e6, 6.25e6, 62.5e6]
    assert told["switches"] == [{"hosts": [0, 1], "uplink_bytes_per_s": 62.5e6}]


def test_all_faults_are_said_at_once_each_with_its_place(tmp_path):
    text = """
        [cluster]
        hosts = 4
        rank_per_host = 2
        link = "0 Gbit/s"
        shrink = 0.5
        [[switch]]
        hosts = [0, "x"]
        uplink = 3
        [accelerators]
        [[faults]]
        kind = "slow-rnk"
        [[faults]]
        kind = "slow-rank"
        delay = "-4 ms"
        where = "sideways"
    """
    said = faults_of(tmp_path, text)
    for expected in (
        "accelerators: no such table; did you mean 'accelerator'?",
        "cluster.rank_per_host: no such option; did you mean 'ranks_per_host'?",
        "cluster.link: expected a rate with its unit, such as '10 Gbit/s', above 0; found '0 Gbit/s'",
        "cluster.shrink: expected a number, at least 1",
        "switch[0].hosts: expected whole numbers",
        "switch[0].uplink: expected a rate with its unit, such as '10 Gbit/s'; found 3",
        "faults[0].kind: expected a kind of fault; found 'slow-rnk'; did you mean 'slow-rank'?",
        "faults[1].delay: expected a time with its unit, such as '40 ms', at least 0; found '-4 ms'",
        "faults[1].where: expected 'forward' or 'backward'",
    ):
        assert any(line.startswith(expected) for line in said), (expected, said)
    assert len(said) == 9


UNUSUAL = {
    "cluster.latency": "0 s",
    "faults[0].delay": "1 s",
    "host[0].clock_offset": "1 s",
    "cluster.link": "1 Gbit/s",
}


@pytest.mark.parametrize("path", UNUSUAL)
@pytest.mark.parametrize("number", ["1e300", "1e308", "400000"])
def test_a_quantity_that_nobody_can_mean_is_said_with_its_bound(tmp_path, path, number):
    """Beyond some size times overflow in Python, and rates in the kernel's tools."""
    values = {**UNUSUAL, path: f"{number} {'Gbit/s' if path == 'cluster.link' else 's'}"}
    text = (
        f'[cluster]\nhosts = 2\nlink = "{values["cluster.link"]}"\nlatency = "{values["cluster.latency"]}"\n'
        f'[[host]]\nindex = 0\nclock_offset = "{values["host[0].clock_offset"]}"\n'
        f'[[faults]]\nkind = "slow-loader"\ndelay = "{values["faults[0].delay"]}"\n'
    )
    (said,) = faults_of(tmp_path, text)
    assert said.startswith(f"{path}: expected a ")
    assert "at most" in said


@pytest.mark.parametrize(("where", "most_ms"), [("input", 3), ("forward", 10), ("backward", 20)])
def test_jitter_that_would_be_cut_off_at_no_time_at_all_is_refused(tmp_path, where, most_ms):
    """A normal distribution of mean 0 that is cut off has another mean, and the truth would be wrong."""
    text = (
        '[cluster]\nhosts = 2\nlink = "1 Gbit/s"\n[accelerator]\nforward_ms = 30\ninput_ms = 9\n'
        f'[[faults]]\nkind = "jitter"\nwhere = "{where}"\ndistribution = "normal"\nstd = '
    )
    assert cluster(tmp_path, f'{text}"{most_ms} ms"\n').faults
    (said,) = faults_of(tmp_path, f'{text}"{most_ms + 0.1} ms"\n')
    assert said.startswith(f"faults[0].std: expected at most a third of {where}")
    assert cluster(tmp_path, f'{text}"1 s"\n'.replace("normal", "exponential")).faults


CONTRADICTIONS = {
    "[[switch]]\nhosts = [7]\nuplink = '1 Gbit/s'": "switch[1].hosts: no host 7; the cluster has hosts 0 to 3",
    "[[switch]]\nhosts = [1]\nuplink = '1 Gbit/s'": "switch[1].hosts: host 1 is behind switch[0] already",
    "[[switch]]\nhosts = []\nuplink = '1 Gbit/s'": "switch[1].hosts: expected at least one host",
    "[[host]]\nindex = 9": "host[0].index: no host 9",
    "[[host]]\nindex = 1\n[[host]]\nindex = 1": "host[1].index: host 1 is described by host[0] already",
    "[[host]]\nindex = 0\nname = 'node2'": "host: two hosts are called 'node2'",
    "[[host]]\nindex = 0\nname = '../../etc'": "host[0].name: expected letters, digits and hyphens",
    "[[faults]]\nkind = 'slow-rank'\ndelay = '1 s'": "faults[1].rank: expected either rank or rotating = true",
    "[[faults]]\nkind = 'kill-rank'\nrank = 8": "faults[1].rank: no rank 8; the cluster has ranks 0 to 7",
    "[[faults]]\nkind = 'slow-link'\nhost = 4\nfactor = 0.5": "faults[1].host: no host 4",
    "[[faults]]\nkind = 'slow-link'\nhost = 0": "faults[1].rate: expected either rate or factor; found neither",
    "[[faults]]\nkind = 'slow-uplink'\nswitch = 1\nfactor = 0.5": "faults[1].switch: no switch 1; the file has 1",
    "[[host]]\nindex = 1\nclock_offset = '1 s'\n[[faults]]\nkind = 'clock-offset'\nhost = 1": "faults[1].host: the clo",
}


@pytest.mark.parametrize("more", CONTRADICTIONS)
def test_what_contradicts_is_said(tmp_path, more):
    (said,) = faults_of(tmp_path, f"{EXAMPLE}{more}\n")
    assert said.startswith(CONTRADICTIONS[more])


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('model = "resnet5"\ndevice = "V100"', "accelerator.model: no network 'resnet5'; did you mean 'resnet50'?"),
        ('device = "V1000"', "accelerator.device: no device 'V1000'; did you mean 'V100'?"),
        ("batch = 64", "accelerator: expected device, forward_ms (and backward_ms), or layers; found none"),
        ("backward_ms = 3.0", "accelerator.forward_ms: missing"),
        ('layers = "absent.json"', "accelerator.layers: profile "),
        ('layers = "one.json"', "accelerator.layers: expected 107 layers"),
        ('layers = "bad.json"', "accelerator.layers: expected a JSON list"),
    ],
)
def test_an_accelerator_that_cannot_be(tmp_path, table, expected):
    (tmp_path / "one.json").write_text('[{"forward_ms": 1, "backward_ms": 2}]')
    (tmp_path / "bad.json").write_text('[{"forward_ms": -1, "backward_ms": 2}]')
    (said,) = faults_of(tmp_path, f'[cluster]\nhosts = 2\nlink = "1 Gbit/s"\n[accelerator]\n{table}\n')
    assert said.startswith(expected)


def test_a_measured_profile_is_read_in_seconds(tmp_path):
    (tmp_path / "layers.json").write_text(json.dumps([{"forward_ms": 1.5, "backward_ms": 3}] * 107))
    table = '[cluster]\nhosts = 2\nlink = "1 Gbit/s"\n[accelerator]\nlayers = "layers.json"\n'
    plain = to_plain(cluster(tmp_path, table))
    assert plain["accelerator"]["layers"][106] == {"forward_s": 0.0015, "backward_s": 0.003}
    assert plan(plain).forward_s == pytest.approx(107 * 0.0015)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a = [", b"x" * 5000, b"[cluster]\n" * 2, b""])
def test_what_is_no_cluster_file_is_one_clear_error(tmp_path, content):
    path = tmp_path / "cluster.toml"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load_cluster(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("path", ["absent.toml", ".", "nul\0byte.toml", "x" * 5000])
def test_a_path_that_cannot_be_read_is_one_clear_error(tmp_path, path):
    with pytest.raises(BadInput, match="cluster file"):
        load_cluster(tmp_path / path)


KEYS = sorted(set(re.findall(r"^(\w+) =", EXAMPLE + "\n".join(FAULTS.values()), re.MULTILINE)))
VALUES = [
    "-1",
    "0",
    "1e400",
    "99999999999999999999",
    '"10 Gbit/s"',
    '"\\u001b[31m"',
    "[]",
    "{}",
    "true",
    "1979-05-27",
    "nan",
]
LINES = st.one_of(
    st.sampled_from(EXAMPLE.splitlines()),
    st.builds("{} = {}".format, st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.builds('kind = "{}"'.format, st.sampled_from(sorted(FAULTS))),
    st.text(max_size=20),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, max_size=30))
def test_any_text_is_a_cluster_or_one_of_our_errors(tmp_path, lines):
    path = tmp_path / "cluster.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        found = load_cluster(path)
    except AllpullError as error:
        said = str(error)
    else:
        said = json.dumps(truth(found), allow_nan=False)
        assert found.ranks >= 1
    assert "\x1b" not in said


def test_a_pipe_without_a_writer_is_no_cluster(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(BadInput, match="not a regular file"):
        load_cluster(tmp_path / "pipe.toml")
