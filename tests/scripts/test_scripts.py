"""Real programs, unedited: each leaves a complete record and prints what it prints when nobody observes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.observe.hooks.conftest import Watch, Watched, plain, torchrun
from tests.scripts.conftest import with_frameworks
from tests.scripts.table import PROGRAMS, SCRIPTS, Script

pytestmark = [pytest.mark.torch, pytest.mark.ranks, pytest.mark.slow]

FULLY_SHARDED = (PROGRAMS / "fully_sharded.py").read_text()


@pytest.mark.parametrize(
    "script", [pytest.param(one, marks=[pytest.mark.proof] if one.proof else []) for one in SCRIPTS], ids=str
)
def test_a_real_program_is_recorded_whole_and_computes_the_same(watched: Watch, tmp_path: Path, script: Script) -> None:
    if script.tool is not None and shutil.which(script.tool) is None:
        pytest.skip(f"{script.tool} is not installed")
    env = {**with_frameworks(*script.needs), **script.variables}
    source = script.path.read_text()
    run = watched(source, *script.arguments, start=script.start, **env)
    assert run.code == 0, run.err
    assert "allpull" not in run.err
    assert run.ranks == list(range(script.ranks))
    for rank in run.ranks:
        check(run, rank, script)
    if script.also is not None:
        script.also(run)
    assert run.out == plain(source, tmp_path, *script.arguments, start=script.start, **env)


def check(run: Watched, rank: int, script: Script) -> None:
    """One rank saw what the table says."""
    steps, per_epoch = run.steps(rank), len(script.samples)
    assert [step.step for step in steps] == list(range(script.epochs * per_epoch))
    assert [step.samples for step in steps] == script.epochs * [*script.samples]
    assert [step.backward_passes for step in steps] == script.epochs * script.passes
    assert [step.epoch for step in steps] == [epoch for epoch in range(script.epochs) for _ in range(per_epoch)]
    for before, after in zip(steps, steps[1:], strict=False):
        assert before.end_ns == after.begin_ns
    for step in steps[script.partial :]:
        assert step.input_ns or not script.loader, step
        assert step.forward_ns, step
        assert step.backward_ns, step
        assert step.optimizer_ns, step
    assert not run.events("switched_off", rank)
    assert [end.steps for end in run.events("end", rank)] == ([len(steps)] if script.ends else [])
    spans = run.events("span", rank)
    ends = {per_epoch * (epoch + 1) for epoch in range(script.epochs)}
    evaluations = [span.step for span in spans if span.name == "evaluation"]
    assert set(evaluations) == (ends if script.evaluations else set()) | ({0} if script.sanity else set())
    if rank == 0:
        saved = script.epochs - script.unsaved if script.checkpoints else 0
        assert {span.step for span in spans if span.name == "checkpoint"} == set(sorted(ends)[:saved])


def test_a_late_rank_never_shows_as_forward_of_sharded_layers(watched: Watch) -> None:
    late = "    for x, y in loader:\n        dist.get_rank() == 1 and time.sleep(0.2)\n"
    run = watched(FULLY_SHARDED.replace("    for x, y in loader:\n", late), start=torchrun(2))
    assert run.code == 0, run.err
    for step in run.steps(0)[2:5]:
        assert (step.collective_ns or 0) > 120e6 > (step.forward_ns or 0), step
        assert step.collectives is not None
        kinds = {kind.id: kind for kind in run.events("collective_kind", 0)}
        seen = [kinds[one[0]] for one in step.collectives if one[0] is not None]
        assert {(kind.op, kind.inside) for kind in seen} == {
            ("all_gather_into_tensor", "forward"),
            ("all_gather_into_tensor", "backward"),
            ("reduce_scatter_tensor", "backward"),
            ("all_reduce", None),  # of the norm by which gradients are clipped
        }
    for step in run.steps(1)[2:5]:
        assert (step.collective_ns or 0) < 120e6, step
