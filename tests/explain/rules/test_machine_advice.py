"""Advice from what a rank recorded of its machine: CPUs far from its GPU, convolutions that are tried out for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.explain.made import found, hosts_of, job

from allpull.explain.evidence.hosts.machine import Machine
from allpull.schema.events import InputShapes, Locality

EIGHT = Machine(hosts=hosts_of(8))


def near(distance: int) -> Locality:
    return Locality(
        kind="locality", bus_id="0000:3b:00.0", node=1, cpus="0-3", near_cpus="4-7", distance=distance, t_ns=0
    )


def test_ranks_on_another_socket_than_their_gpu_are_named() -> None:
    machine = replace(EIGHT, localities={rank: near(32 if rank in (2, 6) else 10) for rank in range(8)})
    (finding,) = found(job(8), machine).findings
    assert (finding.rule, finding.ranks, finding.advice) == ("far-from-gpu", [2, 6], True)
    assert finding.hosts == ["node2", "node4"]
    assert "--cpunodebind=1" in finding.remedy


@pytest.mark.parametrize("distance", [10, 11, 12, 16])
def test_ranks_on_the_socket_of_their_gpu_are_near_enough(distance: int) -> None:
    machine = replace(EIGHT, localities={rank: near(distance) for rank in range(8)})
    assert found(job(8), machine).findings == ()
    assert found(job(8), EIGHT).findings == ()


def counted(shapes: Sequence[int], every: int = 32) -> tuple[InputShapes, ...]:
    return tuple(
        InputShapes(kind="input_shapes", step=4 + place * every, shapes=number, benchmark=True, t_ns=0)
        for place, number in enumerate(shapes)
    )


@pytest.mark.parametrize(
    ("shapes", "advised"),
    [
        pytest.param((0, 20, 41, 60, 85), True, id="new ones keep coming"),
        pytest.param((0, 30, 40, 41, 42), False, id="most are known by now"),
        pytest.param((0, 3, 6, 9, 12), False, id="few"),
        pytest.param((0, 2), False, id="a short last batch"),
        pytest.param((0,), False, id="one event"),
        pytest.param((), False, id="off, or no convolutions"),
    ],
)
def test_new_shapes_that_keep_coming_are_tried_out_again_and_again(shapes: tuple[int, ...], advised: bool) -> None:
    findings = found(job(8), replace(EIGHT, input_shapes=counted(shapes))).findings
    assert [one.rule for one in findings] == ["cudnn-benchmark"] * advised
    assert all(one.advice for one in findings)


def test_rare_new_shapes_are_no_fault() -> None:
    assert found(job(8), replace(EIGHT, input_shapes=counted((0, 10, 20, 30), every=320))).findings == ()
