"""Comparisons of made runs: facts that must agree, caveats, and the metrics of each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.compare.comparability import facts
from allpull.compare.comparison import Options, Sides, compare
from allpull.compare.gate import parse_gate
from allpull.compare.known_variation import parse_known_variation
from allpull.compare.measured_run import measured_run
from allpull.compare.metrics import EPOCH_TIMES, METRICS
from allpull.errors import BadInput
from allpull.rundir.read.run import RunData
from allpull.schema.compared import CompareResult, Difference
from allpull.schema.events import EpochMark, Metric

MS = 100.0  # a step


@pytest.fixture
def make_run(make_records: Callable[..., Any], make_data: Callable[..., RunData]) -> Callable[..., RunData]:
    """``make_run(3, slower=1.05, …)``: run number 3, whose steps take 100 ms and a little, times ``slower``."""

    def make(number: int, *, slower: float = 1.0, ranks: int = 2, steps: int = 40, **changes: Any) -> RunData:
        rng = np.random.default_rng(number)
        own = 1 + 0.002 * rng.standard_normal()
        wall = MS * slower * own * (1 + 0.01 * rng.standard_normal((steps, 1)))
        records = make_records(
            np.repeat(wall, ranks, axis=1).tolist(),
            forward=np.full((steps, ranks), 30.0 * slower).tolist(),
            tags=changes.pop("tags", None),
        )
        created = changes.pop("created_utc", f"2026-01-01T00:{number:02d}:00Z")
        return make_data(records, ranks, id=f"run-{number}", seed=number, created_utc=created, **changes)

    return make


@pytest.fixture
def repeats(make_run: Callable[..., RunData]) -> Callable[..., Sides]:
    """``repeats(slower=1.05)``: three runs and three more, made in turn."""

    def make(*, before: int = 3, after: int = 3, slower: float = 1.0, **changes: Any) -> Sides:
        ours = [make_run(2 * number) for number in range(before)]
        theirs = [make_run(2 * number + 1, slower=slower, **changes) for number in range(after)]
        return sides_of(before=ours, after=theirs)

    return make


def sides_of(*, before: Sequence[RunData], after: Sequence[RunData], accuracy: float | None = None) -> Sides:
    ours, theirs = ([measured_run(AlignedRun(run), accuracy=accuracy) for run in side] for side in (before, after))
    return Sides(before=ours, after=theirs)


def differing(result: CompareResult) -> dict[str, Difference]:
    return {one.fact: one for one in result.differences}


# ---------------------------------------------------------------------- the answer


def test_a_slow_down_is_reported_with_its_size_and_its_interval(repeats: Callable[..., Sides]) -> None:
    result = compare(repeats(slower=1.05), Options())
    assert (result.metric, result.decision) == ("throughput", "slower")
    assert result.change is not None
    assert result.change.low is not None
    assert result.change.high is not None
    assert result.change.low < 1 / 1.05 < result.change.high < 1
    by_name = {one.metric: one for one in result.metrics}
    assert result.metrics[0].metric == "throughput"
    assert by_name["step_s"].change is not None
    assert by_name["step_s"].change.value == pytest.approx(1 / result.change.value)
    assert by_name["step_s"].decision == "slower"
    assert by_name["phases.forward"].change is not None
    assert by_name["phases.forward"].change.value == pytest.approx(0.0015)  # seconds, not a ratio: phases add up
    assert by_name["throughput"].before == pytest.approx(1280, rel=0.01)
    assert result.notes == []


def test_phases_differ_by_what_the_step_differs(repeats: Callable[..., Sides]) -> None:
    result = compare(repeats(slower=1.3), Options())
    phases = [one.change.value for one in result.metrics if one.metric.startswith("phases.") and one.change]
    step = next(one for one in result.metrics if one.metric == "step_s")
    assert step.before is not None
    assert step.after is not None
    assert sum(phases) == pytest.approx(step.after - step.before, rel=1e-3)


def test_identical_runs_show_no_difference_and_say_what_they_could_have_shown(repeats: Callable[..., Sides]) -> None:
    result = compare(repeats(), Options(gates=[parse_gate("throughput < -3%"), parse_gate("phases.forward > 5 ms")]))
    assert result.decision == "no difference shown"
    assert result.smallest is not None
    assert 0 < result.smallest < 0.03
    assert [gate.outcome for gate in result.gates] == ["passed", "passed"]


def test_single_runs_are_reported_and_not_decided_on(repeats: Callable[..., Sides]) -> None:
    result = compare(repeats(before=1, after=1, slower=1.5), Options(gates=[parse_gate("throughput < -3%")]))
    assert result.decision == "not decidable"
    assert result.change is not None
    assert result.change.value == pytest.approx(1 / 1.5, rel=0.02)
    assert (result.change.low, result.change.high) == (None, None)
    assert result.metrics[0].within_runs is not None
    assert result.gates[0].outcome == "unknown"
    assert any("--between-run" in line for line in result.notes)


def test_single_runs_with_a_known_variation_are_decided_on(repeats: Callable[..., Sides]) -> None:
    result = compare(repeats(before=1, after=1, slower=1.1), Options(known_variation=parse_known_variation("0.5%")))
    assert (result.decision, result.metrics[0].basis) == ("slower", "stored")
    forward = next(one for one in result.metrics if one.metric == "phases.forward")
    assert forward.decision == "not decidable"  # a percentage says nothing of seconds


def test_a_result_gives_the_known_variation_of_the_next(repeats: Callable[..., Sides], tmp_path: Any) -> None:
    kept = tmp_path / "identical.json"
    kept.write_text(compare(repeats(before=5, after=5), Options()).model_dump_json(by_alias=True))
    variation = parse_known_variation(str(kept))
    result = compare(repeats(before=1, after=1, slower=1.1), Options(known_variation=variation))
    assert result.decision == "slower"
    forward = next(one for one in result.metrics if one.metric == "phases.forward")
    assert forward.basis == "stored"
    alone = tmp_path / "alone.json"
    alone.write_text(compare(repeats(before=1, after=1), Options()).model_dump_json(by_alias=True))
    with pytest.raises(BadInput, match="too few runs"):
        parse_known_variation(str(alone))


@pytest.mark.parametrize("text", ["0%", "101%", "0.8", "-1%", "nowhere.json", ""])
def test_what_is_not_a_known_variation(text: str) -> None:
    with pytest.raises(BadInput, match="between-run") as refused:
        parse_known_variation(text)
    assert refused.value.hint


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "allpull.show/1.0"}', '{"schema": "allpull.compare/9.0"}'])
def test_a_file_that_is_no_answer(content: str, tmp_path: Any) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BadInput):
        parse_known_variation(str(tmp_path / "x.json"))


def test_a_metric_that_is_asked_for_decides(repeats: Callable[..., Sides]) -> None:
    result = compare(repeats(slower=1.05), Options(metrics=["phases.forward", "step_s"]))
    assert [one.metric for one in result.metrics] == ["phases.forward", "step_s"]
    assert (result.metric, result.decision) == ("phases.forward", "worse")
    with pytest.raises(BadInput, match=r"efficiency\.parallel: not measured on both sides"):
        compare(repeats(), Options(metrics=["efficiency.parallel"]))


def test_pauses_are_in_the_throughput_with_pauses_alone(make_run: Callable[..., RunData]) -> None:
    """A second of evaluation in every tenth step, then a tenth of one: no steady step changes."""

    def paused(number: int, wall_ms: float, make: Callable[..., RunData] = make_run) -> RunData:
        run = make(number, tags={(step, 0): ["evaluation"] for step in range(9, 40, 10)})
        steps = run.steps
        later = ((steps["step"] + 1) // 10 * round(wall_ms * 1e6)).alias("later")
        begun = (steps["step"] // 10 * round(wall_ms * 1e6)).alias("begun")
        moved = steps.with_columns(end_ns=steps["end_ns"] + later, begin_ns=steps["begin_ns"] + begun)
        return RunData(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"steps": moved})

    sides = sides_of(
        before=[paused(2 * number, 1000) for number in range(3)],
        after=[paused(2 * number + 1, 100) for number in range(3)],
    )
    by_name = {one.metric: one for one in compare(sides, Options()).metrics}
    assert by_name["throughput"].decision == "no difference shown"
    assert by_name["throughput_with_pauses"].decision == "faster"
    assert by_name["throughput_with_pauses"].change is not None
    assert by_name["throughput_with_pauses"].change.value == pytest.approx((4000 + 4000) / (4000 + 400), rel=0.01)


def test_accuracy_needs_seeds_and_gets_percentage_points(
    make_run: Callable[..., RunData], make_log: Callable[..., Any]
) -> None:
    def accurate(number: int, top1: float) -> RunData:
        metric = Metric.model_validate(
            {"kind": "metric", "name": "test_top1", "value": top1, "step": 1, "epoch": 0, "t_ns": 0}
        )
        return make_run(number, events={0: make_log(metrics=(metric,))})

    gates = [parse_gate("test_top1 < -0.5pp")]
    before = [accurate(2 * k, top1) for k, top1 in enumerate((0.970, 0.971, 0.972))]
    worse = [accurate(2 * k + 1, top1) for k, top1 in enumerate((0.950, 0.951, 0.949))]
    result = compare(sides_of(before=before, after=worse), Options(gates=gates))
    top1 = next(one for one in result.metrics if one.metric == "test_top1")
    assert (top1.decision, result.gates[0].outcome) == ("worse", "failed")
    assert top1.change is not None
    assert top1.change.value == pytest.approx(-0.021)
    one_seed = [[accurate(2 * k + side, 0.97 - side / 100) for k in range(3)] for side in (0, 1)]
    result = compare(sides_of(before=one_seed[0], after=one_seed[1]), Options(gates=gates))
    assert result.gates[0].outcome == "unknown"
    assert any("another seed" in line for line in result.notes)


# ---------------------------------------------------------------------- what must agree


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"ranks": 4}, "ranks"),
        ({"global_batch": 256}, "global batch"),
        ({"spec": {"model": {"name": "vgg16", "width": 16}, "data": {"name": "digits"}}}, "model.name"),
        ({"spec": {"model": {"name": "resnet8", "width": 16}, "data": {"name": "digits", "limit": 9}}}, "data.limit"),
        ({"threads_per_rank": 2}, "threads_per_rank"),
        ({"versions": {"torch": "2.5"}}, "torch"),
        ({"kind": "rehearse"}, "kind of run"),
        ({"boots": ["a", "b"]}, "hosts"),
    ],
)
def test_runs_that_disagree_are_refused_without_anyway(
    repeats: Callable[..., Sides], make_run: Callable[..., RunData], changes: dict[str, Any], fact: str
) -> None:
    missing = {"data.limit", "global batch"}
    sides = repeats(**changes)
    if fact in missing:  # a fact that the others do not state cannot disagree
        stated = sides_of(before=[_with(make_run(2 * number), changes, fact) for number in range(3)], after=[])
        sides = Sides(before=stated.before, after=sides.after)
    with pytest.raises(BadInput, match=f"{fact}: ") as refused:
        compare(sides, Options())
    assert "--anyway" in refused.value.hint
    result = compare(sides, Options(anyway=True))
    assert differing(result)[fact].key
    assert any(line.startswith("differs, and compared anyway") for line in result.notes)


def _with(run: RunData, changes: dict[str, Any], fact: str) -> RunData:
    other = {"global_batch": 128} if fact == "global batch" else {"spec": {**changes["spec"]}}
    if fact == "data.limit":
        other["spec"]["data"] = {"name": "digits", "limit": 8}
    record = run.record.model_copy(update=other)
    return RunData(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"record": record})


def test_changed_options_are_reported_and_accepted(repeats: Callable[..., Sides]) -> None:
    spec = {"model": {"name": "resnet8", "width": 16}, "data": {"name": "digits"}, "train": {"evaluate_every": 5}}
    result = compare(
        repeats(spec=spec, environment={"OMP_PROC_BIND": "true"}, git={"commit": "b" * 40, "dirty": False}), Options()
    )
    found = differing(result)
    assert (found["train.evaluate_every"].before, found["train.evaluate_every"].after) == ("not set", "5")
    assert {"OMP_PROC_BIND", "git commit"} <= set(found)
    assert not any(one.key for one in result.differences)


def test_programs_are_told_apart_by_their_script_and_differ_by_their_options(
    make_run: Callable[..., RunData],
) -> None:
    def program(number: int, *words: str) -> RunData:
        return make_run(number, kind="run", command=["allpull", "run", "-n", "2", "--", *words])

    result = compare(
        sides_of(
            before=[program(1, "train.py", "--workers", "0")],
            after=[program(2, "train.py", "--workers=8", "--amp")],
        ),
        Options(),
    )
    found = differing(result)
    assert (found["--workers"].before, found["--workers"].after) == ("0", "8")
    assert found["--amp"].after == "given"
    with pytest.raises(BadInput, match=r"program: other\.py before, train\.py after"):
        compare(sides_of(before=[program(1, "other.py")], after=[program(2, "train.py")]), Options())


@pytest.mark.parametrize(
    "before",
    [
        ["/usr/bin/allpull", "run", "-n", "2", "--", "train.py", "--lr", "1"],
        ["/usr/bin/allpull", "run", "-n", "2", "--out", "there.py", "train.py", "--lr", "1"],
        ["/site/allpull/__main__.py", "run", "--ranks=2", "train.py", "--lr", "1"],
        ["/site/allpull/__main__.py", "run", "-n2", "--set", "a=b", "--", "train.py", "--lr", "1"],
    ],
)
def test_the_program_is_the_users_however_allpull_was_started(
    make_run: Callable[..., RunData], before: list[str]
) -> None:
    runs = [
        make_run(number, kind="run", command=[*words, "--lr", "1"])
        for number, words in enumerate(
            (before[:-2], ["allpull", "run", "train.py"], ["__main__.py", "run", "other.py"])
        )
    ]
    assert set(differing(compare(sides_of(before=runs[:1], after=runs[1:2]), Options()))) == {"seed"}
    with pytest.raises(BadInput, match=r"program: train\.py before, other\.py after"):
        compare(sides_of(before=runs[:1], after=runs[2:]), Options())


def test_an_import_states_no_program(make_run: Callable[..., RunData]) -> None:
    one, other = (make_run(number, kind="run", command=["allpull", "import", f"{number}.json"]) for number in (1, 2))
    assert "program" not in facts(one).key
    assert set(differing(compare(sides_of(before=[one], after=[other]), Options()))) == {"seed"}


def test_repeats_must_be_repeats(make_run: Callable[..., RunData]) -> None:
    mixed = [make_run(1), make_run(2, ranks=4), make_run(3)]
    with pytest.raises(BadInput, match="ranks: 2, 4 among the runs before"):
        compare(sides_of(before=mixed, after=[make_run(4), make_run(5), make_run(6)]), Options())
    with pytest.raises(BadInput, match="run-0 is given twice"):
        compare(sides_of(before=[make_run(0)] * 3, after=[make_run(1)]), Options())
    for sides in (sides_of(before=[], after=[make_run(1)]), sides_of(before=[make_run(1)], after=[])):
        with pytest.raises(BadInput, match="no run"):
            compare(sides, Options())
    other = [make_run(2 * number + 1) for number in range(3)]
    other[0].record.environment["NCCL_ALGO"] = "Ring"
    loose = sides_of(before=[make_run(2 * number) for number in range(3)], after=other)
    assert any("not plain repeats: they differ in NCCL_ALGO" in line for line in compare(loose, Options()).notes)


def test_caveats_name_what_else_may_have_changed(make_run: Callable[..., RunData]) -> None:
    blocks = sides_of(before=[make_run(k) for k in range(3)], after=[make_run(k) for k in range(3, 6)])
    assert any("alternate the sides" in line for line in compare(blocks, Options()).notes)
    turns = sides_of(before=[make_run(k) for k in (0, 2, 4)], after=[make_run(k) for k in (1, 3, 5)])
    assert compare(turns, Options()).notes == []
    one_side = compare(sides_of(before=[make_run(k) for k in (0, 2, 4)], after=[make_run(1)]), Options())
    assert one_side.metrics[0].basis == "one side"
    assert any("only the runs before" in line for line in one_side.notes)
    failed = compare(sides_of(before=[make_run(0, status="failed")], after=[make_run(1)]), Options())
    assert any("run-0 (before) is failed" in line for line in failed.notes)
    itself = compare(sides_of(before=[make_run(0)], after=[make_run(0)]), Options())
    assert any("on both sides: run-0" in line for line in itself.notes)


def test_runs_without_steps_are_no_crash(make_run: Callable[..., RunData]) -> None:
    empty = make_run(1, steps=40)
    nothing = RunData(
        **{name: getattr(empty, name) for name in empty.__dataclass_fields__} | {"steps": empty.steps.clear()}
    )
    gates = [parse_gate("throughput < -3%")]
    result = compare(sides_of(before=[nothing], after=[make_run(2)]), Options(gates=gates))
    assert (result.decision, result.change, result.metrics) == ("not decidable", None, [])
    assert result.gates[0].outcome == "unknown"
    some = [nothing, *(make_run(k) for k in (4, 6, 8))]
    result = compare(sides_of(before=some, after=[make_run(k) for k in (3, 5, 7)]), Options())
    assert result.decision == "no difference shown"  # the three that have steps
    assert any("has no throughput" in line for line in result.notes)


def test_a_percentage_applies_to_ratios_alone() -> None:
    variation = parse_known_variation("1%")
    known = {name: spread.sd for name, metric in METRICS.items() if (spread := variation.of(metric)) is not None}
    rates = ("throughput", "throughput_with_pauses", "training_samples_per_s", "overall_samples_per_s")
    times = ("step_s", "epoch_s", "time_to_solution_s")  # time to an accuracy depends on the seed
    assert known == dict.fromkeys((*rates, *times), 0.01)


@pytest.fixture
def make_epochs(
    make_records: Callable[..., Any], make_data: Callable[..., RunData], make_log: Callable[..., Any]
) -> Callable[..., RunData]:
    """``make_epochs("a", slower=1.5, steps=4)``: one rank, three epochs of equal steps of 100 ms × ``slower``."""

    def make(id_: str, *, slower: float = 1.0, steps: int = 4) -> RunData:
        at = [MS * slower * step for step in range(3 * steps)]
        begins = {epoch: 10**12 + round(1e6 * at[epoch * steps]) for epoch in range(3)}
        marks = (EpochMark(kind="epoch", epoch=one, step=one * steps, t_ns=t_ns) for one, t_ns in begins.items())
        accuracies = (
            Metric(kind="metric", name="test_top1", value=0.3 * one, step=0, epoch=one, t_ns=t_ns)
            for one, t_ns in begins.items()
        )
        records = make_records([[MS * slower]] * len(at), begin=[[one] for one in at])
        log = make_log(0, epochs=tuple(marks), metrics=tuple(accuracies))
        return make_data(records, 1, id=id_, events={0: log})

    return make


def test_epochs_are_compared_by_their_time_their_parts_and_their_rates(make_epochs: Callable[..., RunData]) -> None:
    sides = sides_of(before=[make_epochs("a")], after=[make_epochs("b", slower=1.5)], accuracy=0.5)
    by_name = {one.metric: one for one in compare(sides, Options()).metrics}
    assert {name: round(one.change.value, 6) for name, one in by_name.items() if one.change and "epoch" in name} == {
        "epoch_s": 1.5,
        "epoch_training_s": 0.2,  # s: a difference, because parts add up
        "epoch_evaluation_s": 0.0,
        "epoch_checkpoint_s": 0.0,
        "epoch_start_s": 0.0,
        "epoch_other_s": 0.0,
    }
    assert by_name["time_to_accuracy_s"].before == pytest.approx(0.8)  # 0.6 at the end of the second epoch
    assert by_name["overall_samples_per_s"].change.value == pytest.approx(1 / 1.5)  # type: ignore[union-attr]


def test_times_of_epochs_of_other_work_are_not_compared(make_epochs: Callable[..., RunData]) -> None:
    sides = sides_of(before=[make_epochs("a")], after=[make_epochs("b", steps=5)], accuracy=0.5)
    result = compare(sides, Options())
    names = {one.metric for one in result.metrics}
    assert not names & set(EPOCH_TIMES)
    assert "training_samples_per_s" in names
    assert any("their times and those to a solution" in line for line in result.notes)
