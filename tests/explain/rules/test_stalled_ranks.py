"""A rank that its own recorded stalls make late is late because of them, and not because of its host or a CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.explain.made import STEPS, facts, found, job
from tests.replay.windows import only

from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.stalls import COLLECTION, COMPILATION, RETRIES, Stalls
from allpull.explain.findings import findings
from allpull.replay.engine import replay
from allpull.replay.window import Window
from allpull.schema.explained import Finding

TWO = Machine(hosts=("node1", "node1"))
LONG = only(2, STEPS, seconds=0.3, rank=1, every=5, first=2)  # 60 ms per step of rank 1, which takes 62 ms
SAID = {COLLECTION: "gc.freeze()", COMPILATION: "TORCH_LOGS=recompiles", RETRIES: "expandable_segments"}


def stalled(cause: str = COMPILATION, seconds: float = 0.3, rank: int = 1) -> Stalls:
    return Stalls(seconds={cause: only(2, STEPS, seconds=seconds, rank=rank, every=5, first=2)}, recorded=True)


def said(one: Window, stalls: Stalls) -> list[Finding]:
    return list(found(one, TWO, stalls=stalls).findings)


@pytest.mark.parametrize(("cause", "seconds"), [(COLLECTION, 0.3), (COMPILATION, 0.29), (RETRIES, np.inf)])
def test_stalls_of_one_rank_are_named_and_priced(cause: str, seconds: float) -> None:
    (only_one,) = said(job(2, forward=LONG), stalled(cause, seconds))
    assert (only_one.rule, only_one.ranks) == ("slow-rank", [1])
    assert "in 8 of 40 steps" in only_one.title
    assert SAID[cause] in only_one.remedy
    assert "clocks" not in only_one.remedy
    assert only_one.loss_s_per_step == pytest.approx(0.060, rel=0.05)
    gain = replay(job(2, forward=LONG)).total_s / replay(job(2)).total_s
    assert only_one.gain is not None
    assert only_one.gain.value == pytest.approx(gain, rel=0.05)


def test_a_stall_is_not_time_waiting_for_a_cpu() -> None:
    one = replace(job(2, forward=LONG), queued_s=0.8 * LONG)
    assert next(finding.rule for finding in said(one, Stalls(recorded=True))) == "cpu-contention"
    (only_one,) = said(one, stalled())
    assert only_one.rule == "slow-rank"
    assert "torch.compile compiles" in only_one.title


def test_what_is_left_is_a_finding_of_its_own() -> None:
    slow = np.tile([0.0, 0.030], (STEPS, 1))
    answer = said(job(2, forward=LONG + slow), stalled())
    assert [(one.rule, one.ranks) for one in answer] == [("slow-rank", [1])] * 2
    stall, rest = answer
    assert stall.loss_s_per_step == pytest.approx(0.060, rel=0.05)
    assert rest.loss_s_per_step == pytest.approx(0.030, rel=0.05)
    assert "clocks" in rest.remedy


@pytest.mark.parametrize(
    "stalls",
    [stalled(seconds=0.1), stalled(rank=0), Stalls(seconds={COLLECTION: np.roll(LONG, 1, axis=0)}, recorded=True)],
    ids=["a third of it", "of the other rank", "in other steps"],
)
def test_stalls_that_do_not_explain_it_are_not_named(stalls: Stalls) -> None:
    (only_one,) = said(job(2, forward=LONG), stalls)
    assert (only_one.rule, only_one.ranks) == ("slow-rank", [1])
    assert "clocks" in only_one.remedy


def test_stalls_in_the_same_steps_of_all_ranks_make_none_late() -> None:
    every = only(2, STEPS, seconds=0.3, every=8, first=2)
    answer = said(job(2, forward=every), Stalls(seconds={COLLECTION: every}, recorded=True))
    assert [one.rule for one in answer] == ["common-stall"]


def test_parts_of_lateness_do_not_exceed_it() -> None:
    """Most of the excess in forward is waiting for a CPU, and no part of what the rank computes longer."""
    rng = np.random.default_rng(1)
    waits = np.column_stack([np.zeros(STEPS), np.maximum(0.100 + rng.normal(0.0, 0.005, STEPS), 0.0)])
    own = np.tile([0.0, 0.040], (STEPS, 1))
    one = replace(job(2, forward=waits + own, backward=own / 10), queued_s=waits)
    slow = next(finding for finding in findings(facts(one, TWO)).findings if finding.rule == "slow-rank")
    whole = slow.evidence[0].value
    parts = [line.value for line in slow.evidence if line.what.startswith("of that, in ")]
    assert parts
    assert sum(parts) <= whole * (1 + 1e-9)
