"""POP efficiencies of a run on disk, against a plan whose useful times are known and the simulator's ideal network."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Times, Training, Wire, even

from allpull import open_run
from allpull.api.reporting import scaling_report
from allpull.schema.pop import PopEfficiencies

SLOW = Wire(latency_s=0.001, bytes_per_s=5e8)


def measured(training: Training, folder: Path) -> tuple[PopEfficiencies, Path]:
    run = write(simulate(training), folder, Recording())
    pop = scaling_report([open_run(run).aligned]).show.runs[0].pop
    assert pop is not None
    return pop, run


def window(pop: PopEfficiencies) -> slice:
    return slice(pop.first_step, pop.first_step + pop.steps)


def planned_useful(training: Training, steps: slice) -> Times:
    """Useful seconds of each rank, as planned."""
    one = training.passes[0]
    return np.asarray((one.forward + one.backward + training.optimizer)[:, steps].sum(axis=1))


def run_time(run: Path, steps: slice) -> float:
    """From the raw records: the first begin of these steps to their last end, over all ranks."""
    begins, ends = [], []
    for file in sorted((run / "steps").glob("rank-*.jsonl")):
        records = [json.loads(line) for line in file.read_text("ascii").splitlines()[1:]]
        begins.append(records[steps.start]["begin_ns"])
        ends.append(records[steps.stop - 1]["end_ns"])
    return (max(ends) - min(begins)) * 1e-9


def on_ideal_network(training: Training, steps: slice) -> float:
    """Seconds of these steps where collectives take no time."""
    shorter = {
        name: getattr(training, name)[:, steps]
        for name in ("wire_factor", "input", "copy", "other", "optimizer", "evaluation", "checkpoint")
    }
    passes = tuple(
        dataclasses.replace(one, forward=one.forward[:, steps], backward=one.backward[:, steps])
        for one in training.passes
    )
    ideal = Wire(latency_s=0.0, bytes_per_s=1e30)
    return simulate(
        dataclasses.replace(training, **shorter, passes=passes, wire=ideal, steps=steps.stop - steps.start)  # type: ignore[arg-type]
    ).seconds()


def evaluated_on_rank_0(seconds: float) -> Training:
    return even(ranks=8, steps=42).later("evaluation", seconds, rank=0, steps=slice(9, None, 10))


@pytest.mark.parametrize(
    "training",
    [
        even(ranks=4, wire=SLOW),
        even(ranks=4, wire=SLOW).later("backward", 0.040, rank=3),
        even(ranks=4, input_s=0.050),
        evaluated_on_rank_0(1.9),
    ],
    ids=["slow network", "slow rank", "slow loader", "evaluation on rank 0"],
)
def test_definitions(tmp_path: Path, training: Training) -> None:
    pop, run = measured(training, tmp_path)
    steps = window(pop)
    useful_s, time_s = planned_useful(training, steps), run_time(run, steps)
    ideal_s = on_ideal_network(training, steps)
    assert pop.load_balance == pytest.approx(useful_s.mean() / useful_s.max(), rel=2e-3)
    assert pop.communication == pytest.approx(useful_s.max() / time_s, rel=2e-3)
    assert pop.transfer == pytest.approx(ideal_s / time_s, rel=5e-3)
    assert pop.serialisation == pytest.approx(useful_s.max() / ideal_s, rel=5e-3)
    assert pop.parallel == pytest.approx(useful_s.mean() / time_s, rel=2e-3)
    assert pop.parallel == pytest.approx(pop.load_balance * pop.communication, rel=1e-12)
    assert pop.communication == pytest.approx(pop.serialisation * pop.transfer, rel=1e-12)


def test_an_evaluation_on_rank_0_is_lost_to_serialisation_as_in_claix(tmp_path: Path) -> None:
    """64 GPUs of CLAIX: load balance 0.99, communication 0.33; the test phase was sequential."""
    pop, _ = measured(evaluated_on_rank_0(1.9), tmp_path)
    assert pop.load_balance > 0.98
    assert pop.communication == pytest.approx(0.33, abs=0.03)
    assert pop.communication / pop.serialisation > 0.8


def test_a_tool_that_records_communication_alone_calls_it_imbalance(tmp_path: Path) -> None:
    training = evaluated_on_rank_0(1.9)
    pop, run = measured(training, tmp_path)
    steps = window(pop)
    work_s = planned_useful(training, steps) + sum(
        getattr(training, name)[:, steps].sum(axis=1) for name in ("input", "other", "evaluation")
    )
    outside = pop.outside_communication
    assert outside.load_balance == pytest.approx(work_s.mean() / work_s.max(), rel=5e-3)
    assert outside.communication == pytest.approx(work_s.max() / run_time(run, steps), rel=5e-3)
    assert outside.load_balance < 0.5 < 0.9 < outside.communication
    assert outside.parallel == pytest.approx(pop.parallel + sum(outside.added.values()), rel=1e-9)
    assert outside.added["evaluation"] == pytest.approx(
        training.evaluation[:, steps].sum() / training.ranks / run_time(run, steps), rel=5e-3
    )


def test_computational_scaling_is_useful_time_per_sample(tmp_path: Path) -> None:
    small, large = even(ranks=2, jitter=0.0), even(ranks=4, jitter=0.0, forward_s=0.045)
    runs = []
    for name, training in (("small", small), ("large", large)):
        runs.append(open_run(write(simulate(training), tmp_path / name, Recording())).aligned)
    show = scaling_report(runs).show
    reference, larger = (run.pop for run in show.runs)
    assert reference is not None
    assert larger is not None
    assert reference.computational == 1.0
    assert larger.computational == pytest.approx(0.094 / 0.109, rel=1e-6)
    assert larger.global_ == pytest.approx(larger.parallel * larger.computational, rel=1e-12)
