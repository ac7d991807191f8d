"""Needless are reductions that another one of the same network follows before an optimizer steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Training, Wire, even, spread

from allpull.analyse.aligned import AlignedRun
from allpull.explain.rules.accumulate_without_no_sync import needless_reductions
from allpull.replay.engine import replay
from allpull.replay.recording.build import record_window
from allpull.replay.whatif.network import without_reductions
from allpull.replay.window import REDUCE, Window
from allpull.rundir.read.run import read_run

MIB = 1 << 20
PASSES, STEPS = 3, 20
WIRE = Wire(latency_s=0.0, bytes_per_s=64 * MIB / 0.040)
BUCKETS = spread(total=64 * MIB, count=4)


def recorded(folder: Path, training: Training) -> Window:
    window = record_window(AlignedRun(read_run(write(simulate(training), folder, Recording()))))
    assert isinstance(window, Window)
    return window


def accumulated(folder: Path) -> Window:
    """Every update of two ranks reduces three times."""
    training = even(
        ranks=2, steps=STEPS, passes=PASSES, forward_s=0.010, backward_s=0.020, buckets=BUCKETS, wire=WIRE, jitter=0.0
    )
    return recorded(folder, training)


@pytest.fixture(scope="module")
def accumulating(tmp_path_factory: pytest.TempPathFactory) -> Window:
    return accumulated(tmp_path_factory.mktemp("accumulating"))


def test_all_but_the_last_of_an_update_are_needless(accumulating: Window) -> None:
    needless = needless_reductions(accumulating)
    assert needless.tolist() == ([True] * (PASSES - 1) + [False]) * accumulating.steps.size


def test_an_optimizer_that_steps_in_between_needs_them(accumulating: Window) -> None:
    optimizer_s = accumulating.work["optimizer"].copy()
    optimizer_s[accumulating.kind == REDUCE] = 0.001
    stepping = replace(accumulating, work={**accumulating.work, "optimizer": optimizer_s})
    assert not needless_reductions(stepping).any()


def test_other_networks_are_no_repetition(accumulating: Window) -> None:
    lane = accumulating.reductions
    assert lane is not None
    in_turn = replace(lane, networks=np.arange(lane.seconds.shape[0], dtype=np.intp) % PASSES)
    assert not needless_reductions(replace(accumulating, reductions=in_turn)).any()


@pytest.mark.parametrize(("every", "is_needless"), [(4, False), (2, False), (1, True)])
def test_a_network_that_is_reduced_twice_in_few_updates_had_some_skipped(
    accumulating: Window, every: int, is_needless: bool
) -> None:
    lane = accumulating.reductions
    assert lane is not None
    twice = np.arange(accumulating.steps.size) % every == every - 1
    networks = np.where(twice[:, None], [1, 0, 0], [1, 2, 0]).astype(np.intp)
    needless = needless_reductions(replace(accumulating, reductions=replace(lane, networks=networks.ravel())))
    assert needless.reshape(-1, PASSES)[:, 1].tolist() == (twice & is_needless).tolist()


def test_a_single_reduction_per_update_is_needed(tmp_path: Path) -> None:
    assert not needless_reductions(recorded(tmp_path, even(ranks=2, steps=STEPS))).any()


def test_without_them_only_the_last_pass_waits_for_its_lane(accumulating: Window) -> None:
    """A lane of 40 ms, whose first bucket is ready after 5 of the 20 ms of backward, blocks each pass for 25 ms."""
    left = without_reductions(accumulating, needless_reductions(accumulating))
    saved_s = (replay(accumulating).total_s - replay(left).total_s) / accumulating.steps.size
    assert saved_s == pytest.approx((PASSES - 1) * 0.025, rel=1e-3)
    assert left.reductions is not None
    assert left.reductions.seconds.shape[0] == accumulating.steps.size
    assert int((left.kind == REDUCE).sum()) == accumulating.steps.size
