"""Runs made of numbers, for rules: a job of given ranks and hosts, with what is planted in it, as the facts of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.replay.windows import jitter, window

from allpull.explain.evidence.facts import Facts, Observed, gather
from allpull.explain.evidence.hosts.machine import Connection, Machine
from allpull.explain.findings import Findings, findings
from allpull.replay.blame import blame
from allpull.replay.window import Window

STEPS = 40
FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.020, 0.040, 0.002
BUCKETS = (0.002, 0.003, 0.001)


def hosts_of(ranks: int, a_host: int = 2) -> tuple[str, ...]:
    return tuple(f"node{rank // a_host + 1}" for rank in range(ranks))


def job(ranks: int = 4, steps: int = STEPS, *, noise_s: float = 0.0005, seed: int = 0, **more) -> Window:
    """A healthy window: what is in ``more`` is added to its phases, or is another argument of ``window``."""
    work = {
        "input": 0.0001,
        "forward": FORWARD_S + jitter(ranks, steps, sd_s=noise_s, seed=seed),
        "backward": BACKWARD_S + jitter(ranks, steps, sd_s=noise_s, seed=seed + 1),
        "optimizer": OPTIMIZER_S,
        "other": 0.0002,
    }
    for phase in ("input", "forward", "backward", "optimizer", "other", "evaluation", "checkpoint", "copy", "host"):
        if phase in more:
            work[phase] = work.get(phase, 0.0) + more.pop(phase)
    return window(ranks, steps, **{"bucket_s": BUCKETS, **work, **more})


def facts(one: Window, machine: Machine | None = None, network=None, *, pace=None, **observed) -> Facts:
    machine = Machine(hosts=hosts_of(one.ranks)) if machine is None else machine
    known = Observed(**{"first": np.zeros(one.steps.size, dtype=bool)} | observed)
    blamed = blame(one) if one.ranks > 1 else None
    return gather(one, machine, known, network=network, blame=blamed, pace=pace)


def found(one: Window, machine: Machine | None = None, **more) -> Findings:
    answer = findings(facts(one, machine, **more))
    for finding in answer.findings:
        assert all(option in finding.remedy for option in finding.options), finding
        assert all(one.line in finding.remedy for one in finding.lines), finding
    return answer


def rules(one: Window, machine: Machine | None = None, **more) -> list[str]:
    return [finding.rule for finding in found(one, machine, **more).findings]


def ring(
    hosts: int, rates: dict[tuple[int, int], float] | None = None, *, busy_share: float = 0.5
) -> tuple[Connection, ...]:
    """The connections of a ring over ``hosts`` hosts, 100 MB/s but for those in ``rates`` (from, to), both ways."""
    return tuple(
        Connection(
            source=f"node{one + 1}",
            target=f"node{other + 1}",
            seconds=1.0,
            sent_bytes=10**9,
            bytes_per_s=(rates or {}).get((one, other), 100e6),
            busy_share=busy_share,
            retransmits=0,
        )
        for one in range(hosts)
        for other in sorted({(one + 1) % hosts})
    )


def crowded(machine: Machine, ranks: tuple[int, ...], share: float) -> Machine:
    """``machine`` on which ``ranks`` wait for a CPU for that share of the time."""
    queued = np.full(len(machine.hosts), 0.01)
    queued[list(ranks)] = share
    return replace(machine, queued_s=queued)
