"""The lab of the straggler: rehearsals with one planted fault each, what `explain` says of them, and one without."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from allpull.api.comparison import compare
from allpull.api.reporting import with_explanation
from allpull.api.runs import Run
from allpull.errors import AllpullError, MissingPart
from allpull.labs.ranks import check_ranks, rehearse_ranks, why_no_hosts
from allpull.schema.base import tag
from allpull.schema.explained import ExplainDetail
from allpull.schema.labs import StragglerCase, StragglerFault, StragglerResult, StragglerRun

FAULTS: tuple[StragglerFault, ...] = ("slow-rank", "slow-loader", "thin-link")
RULES: dict[StragglerFault, str] = {
    "slow-rank": "slow-rank",
    "slow-loader": "slow-loader-rank",
    "thin-link": "slow-link",
}
"""Fault → the rule of `explain` that names it."""
LEAST_RANKS = 3  # two hosts have one connection: it cannot be slower than another
STEPS = 40

CLUSTER = """[cluster]
name = "{name}"
hosts = {ranks}
link = "10 Gbit/s"
shrink = 100

[accelerator]
model = "resnet18"
batch = 64
forward_ms = 60
backward_ms = 120
input_ms = 4
optimizer_ms = 6
bucket_mib = 10
"""
PLANTED: dict[StragglerFault, str] = {
    "slow-rank": '[[faults]]\nkind = "slow-rank"\nrank = {rank}\nwhere = "backward"\ndelay = "80 ms"\n',
    "slow-loader": '[[faults]]\nkind = "slow-loader"\nrank = {rank}\ndelay = "80 ms"\n',
    "thin-link": '[[faults]]\nkind = "slow-link"\nhost = {rank}\nfactor = 0.2\n',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerLab:
    """Rehearse each of ``faults`` on ``ranks``; ``seed`` chooses the ranks at fault and the order."""

    ranks: int = 4
    faults: Sequence[StragglerFault] = FAULTS
    seed: int = 0
    steps: int = STEPS

    def check(self) -> None:
        """Whether this can be done here.

        Raises:
            BadInput: it cannot; says why.
        """
        check_ranks(self.ranks, LEAST_RANKS)

    @property
    def planted(self) -> list[tuple[StragglerFault, int]]:
        """The faults in the order of the cases, each with its rank; different ranks as far as there are."""
        rng = random.Random(self.seed)  # noqa: S311  no secret
        order = rng.sample(FAULTS, len(FAULTS))
        ranks = dict(zip(order, rng.sample(range(self.ranks), len(FAULTS)), strict=True))
        return [(fault, ranks[fault]) for fault in order if fault in self.faults]


def run_straggler(lab: StragglerLab, out: Path = Path("runs")) -> StragglerResult:
    """Do ``lab``; the run directories are made in ``out``.

    Raises:
        BadInput: this machine cannot hold the ranks.
        MissingPart: only a thin link was requested, and this machine has no virtual hosts.
        AllpullError: a rank failed, or a run is too disturbed to be explained.
    """
    lab.check()
    reason = why_no_hosts()
    planted = [one for one in lab.planted if reason is None or one[0] != "thin-link"]
    left_out = None
    if len(planted) < len(lab.planted):
        left_out = f"The thin link is left out, because it needs virtual hosts: {reason}."
    if not planted:
        raise MissingPart(f"a thin link needs virtual hosts: {reason}", hint="--fault slow-rank needs none")
    mended = _run(lab, "mended", "", out, shaped=reason is None)
    cases = []
    for number, (fault, rank) in enumerate(planted):
        faulty = _run(lab, "abc"[number], PLANTED[fault].format(rank=rank), out, shaped=reason is None)
        cases.append(_case(fault, rank, faulty, mended))
    return StragglerResult(
        schema=tag("lab"),
        ranks=lab.ranks,
        seed=lab.seed,
        steps=lab.steps,
        on_hosts=reason is None,
        left_out=left_out,
        cases=cases,
    )


def _run(lab: StragglerLab, case: str, fault: str, out: Path, *, shaped: bool) -> Run:
    name = f"lab-straggler-{case}"
    return rehearse_ranks(CLUSTER.format(name=name, ranks=lab.ranks) + fault, lab.steps, name, out, shaped=shaped)


def _case(fault: StragglerFault, rank: int, faulty: Run, mended: Run) -> StragglerCase:
    detail = _explained(faulty)
    findings = detail.result.findings
    own = next((one for one in findings if one.rule == RULES[fault] and one.ranks == [rank]), None)
    throughput = compare(faulty, mended, anyway=True).metrics[0]
    came = throughput.within_runs or throughput.change
    assert came is not None  # both runs have steady steps, or they could not be explained
    return StragglerCase(
        fault=fault,
        rank=rank,
        host=faulty.data.headers[rank].host if faulty.data.record.hosts else None,
        faulty=_shown(faulty, detail),
        mended=_shown(mended, _explained(mended)),
        findings=findings,
        named=own is not None,
        promised=None if own is None else own.gain,
        came=came,
    )


def _explained(run: Run) -> ExplainDetail:
    details = with_explanation([run.aligned]).explained
    if not details or not details[0].timeline:
        raise AllpullError(f"run {run.id} cannot be explained", hint=f"allpull explain {run.directory} says why")
    return details[0]


def _shown(run: Run, detail: ExplainDetail) -> StragglerRun:
    window = detail.result.window
    return StragglerRun(run=run.id, step_s=window.seconds / window.steps, timeline=detail.timeline)
