"""`allpull compare` as people and CI type it: sides, exit codes, words, JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from allpull.analyse.aligned import AlignedRun
from allpull.cli import app
from allpull.cli.compare import each_after
from allpull.explain.explanation import explain
from allpull.rundir import layout
from allpull.rundir.derived import cache_explanation
from allpull.rundir.read.run import read_run
from allpull.schema.document import json_schema
from allpull.schema.explained import ExplainResult

KEPT = Path(__file__).parent.parent / "runs/v1.1"
MOMENTS = ("begin_ns", "end_ns", "arrival_ns", "done_ns")
BEFORE, AFTER = (1.0, 1.004, 0.997), (1.10, 1.104, 1.097)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``before`` and ``after``, each with three copies of a real run, those after a tenth slower."""
    folder = tmp_path_factory.mktemp("compared")
    for name, factors in (("before", BEFORE), ("after", AFTER)):
        for number, factor in enumerate(factors):
            minute = 2 * number + (name == "after")
            run = folder / name / f"run-{number}"
            stretched(run, factor, f"{name}-{number}", f"2026-11-21T04:{minute:02d}:00Z")
            data = read_run(run)  # as `allpull explain` keeps it: tests explain each run once
            cache_explanation(run, data.record, explain(AlignedRun(data)).result)
    return folder


def stretched(target: Path, factor: float, name: str, created_utc: str) -> None:
    """A copy of the kept run in which everything takes ``factor`` times as long."""
    shutil.copytree(KEPT, target)
    edit(target, id=name, created_utc=created_utc)
    for path in (target / "steps").iterdir():
        header, *lines = path.read_text().splitlines()
        steps = [json.loads(line) for line in lines]
        zero = steps[0]["begin_ns"]
        path.write_text("\n".join([header, *(json.dumps(longer(step, factor, zero)) for step in steps)]) + "\n")


def longer(step: dict[str, Any], factor: float, zero: int) -> dict[str, Any]:
    def moment(ns: int | None) -> int | None:
        return None if ns is None else zero + round((ns - zero) * factor)

    times = {
        key: moment(value) if key in MOMENTS else round(value * factor)
        for key, value in step.items()
        if key.endswith("_ns") and isinstance(value, int)
    }
    calls = [
        [kind, seq, moment(begin), None if blocked is None else round(blocked * factor), moment(end)]
        for kind, seq, begin, blocked, end in step.get("collectives") or []
    ]
    return {**step, **times, "collectives": calls or None}


def edit(run: Path, **changes: object) -> None:
    path = run / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command line left."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def words(self) -> str:
        """Standard output, however it was wrapped."""
        return " ".join(self.stdout.split())


@pytest.fixture
def compare(sides: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """``compare("before", "--with", "after", …)`` in the folder of both, in this process: there are many of them."""
    monkeypatch.chdir(sides)

    def call(*words: str, columns: int = 120) -> Done:
        found = CliRunner().invoke(app, ["compare", *words], env={"COLUMNS": str(columns), "NO_COLOR": "1"})
        return Done(returncode=found.exit_code, stdout=found.stdout, stderr=found.stderr)

    return call


def runs(name: str) -> Sequence[str]:
    return [f"{name}/run-{number}" for number in range(3)]


def test_folders_and_lists_of_runs_are_the_same(compare: Callable[..., Done]) -> None:
    answers = [
        compare("before", "--with", "after", "--json"),
        compare(*runs("before"), "--with", *runs("after"), "--json"),
        compare("--json", *runs("before"), *(word for run in runs("after") for word in ("--with", run))),
        compare(*runs("before"), "--with", runs("after")[0], "--json", *runs("after")[1:]),
        compare("before", "after", "--json"),  # two places: one before, one after
    ]
    assert [one.returncode for one in answers] == [0] * 5, answers[0].stderr
    assert len({one.stdout for one in answers}) == 1


def test_the_answer_is_of_its_schema_and_says_what_changed(compare: Callable[..., Done]) -> None:
    found = json.loads(compare("before", "--with", "after", "--json").stdout)
    jsonschema.validate(found, json_schema("compare"))
    assert next(iter(found)) == "schema"
    assert (found["metric"], found["decision"]) == ("throughput", "slower")
    assert found["change"]["low"] < 1 / 1.1 < found["change"]["high"] < 0.97
    assert [run["run"] for run in found["before"]] == ["before-0", "before-1", "before-2"]
    assert found["notes"] == []
    assert found["differences"] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--fail-if", "throughput < -3%"), 3, "gate failed: throughput < -3%"),
        (("--fail-if", "throughput < -30%"), 0, ""),
        (("--fail-if", "throughput < -30%", "--fail-if", "step_s > 3%"), 3, "gate failed: step_s > 3%"),
        (("--fail-if", "phases.copy > 1ms"), 0, "gate unknown: phases.copy > 1ms"),
        (("--fail-if", "phases.copy > 1ms", "--strict"), 3, "gate unknown"),
        (("--fail-if", "throughput < -9.1%"), 0, "gate unknown"),  # the very change: the interval holds it
    ],
)
def test_gates_end_with_code_3(compare: Callable[..., Done], words: Sequence[str], code: int, said: str) -> None:
    done = compare("before", "--with", "after", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
    assert "Gates:" in done.stdout


def test_identical_runs_pass(compare: Callable[..., Done]) -> None:
    done = compare(*runs("before"), "--with", "again", "--fail-if", "throughput < -3%", "--strict")
    assert done.returncode == 2  # there is no such run
    done = compare("before", "--with", "before", "--fail-if", "throughput < -3%", "--strict")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no difference shown: throughput")


def test_runs_that_nobody_explained_are_explained_now(
    compare: Callable[..., Done], sides: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(sides / "before", bare)
    for run in bare.iterdir():
        (run / layout.EXPLANATION).unlink()
    kept, anew = (json.loads(compare(str(one), "--with", "after", "--json").stdout) for one in (sides / "before", bare))
    assert kept["metrics"] == anew["metrics"]
    assert any(one["metric"] == "efficiency.parallel" for one in kept["metrics"])


def test_single_runs_never_decide(compare: Callable[..., Done]) -> None:
    done = compare("before/run-0", "after/run-0", "--fail-if", "throughput < -3%")
    assert done.returncode == 0
    assert done.stdout.startswith("not decidable: throughput −9.1 %, interval not known")
    assert "--between-run" in done.stdout
    assert "gate unknown" in done.stderr
    done = compare("before/run-0", "after/run-0", "--fail-if", "throughput < -3%", "--between-run", "0.5%")
    assert done.returncode == 3
    assert done.stdout.startswith("slower: throughput")


def test_an_answer_that_was_kept_is_a_figure(compare: Callable[..., Done], tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(compare("before", "--with", "before", "--json").stdout)
    done = compare("before/run-0", "after/run-0", "--between-run", str(kept))
    assert done.stdout.startswith("slower: throughput"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no run at all was given"),
        (("before",), "no run after was given"),
        (("--with", "after"), "no run before was given"),
        (("before/run-0", "before/run-1", "before/run-2"), "no run after was given"),
        (("before", "--with", "nowhere"), "nowhere"),
        (("before", "--with", "after", "--strict"), "--strict has no effect without --fail-if"),
        (("before", "--with", "after", "--fail-if", "throughput"), "cannot be read"),
        (("before", "--with", "after", "--metric", "thruput"), "did you mean 'throughput'?"),
        (("before", "--with", "after", "--metric", "efficiency.global"), "not measured on both sides"),
        (("before", "--with", "after", "--between-run", "1"), "write 1%"),
        (("before", "--with", "after", "--fail-if"), "--fail-if"),
    ],
)
def test_what_cannot_be_compared_is_one_clear_error(
    compare: Callable[..., Done], words: Sequence[str], said: str
) -> None:
    done = compare(*words)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_unlike_runs_are_refused_unless_told(run_cli: Callable[..., Any], sides: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(sides / "after", other)
    for run in other.iterdir():
        edit(run, threads_per_rank=8, name="x\x1b]0;owned\x07[bold]", environment={"OMP\x1b[31m_NUM": "\x1b[2J8"})
    done = run_cli("compare", str(sides / "before"), "--with", str(other))
    assert done.returncode == 2
    assert "threads_per_rank: 1 before, 8 after" in done.stderr
    assert "--anyway" in done.stderr
    done = run_cli("compare", str(sides / "before"), "--with", str(other), "--anyway")
    assert done.returncode == 0
    assert "threads_per_rank (must agree): 1 → 8" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_a_promise_is_read_and_a_damaged_one_is_done_without(
    compare: Callable[..., Done], sides: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"  # what is slower is before here, and its fault is mended
    shutil.copytree(sides / "after", slow)
    for number in range(3):
        run = slow / f"run-{number}"
        result = ExplainResult.model_validate({**SLOW_RANK, "run": f"after-{number}"})
        cache_explanation(run, read_run(run).record, result)
    (slow / "run-1" / layout.EXPLANATION).write_text("{")
    page = tmp_path / "page.html"
    done = compare(str(slow), "--with", "before", "--html", str(page))
    assert done.returncode == 0, done.stderr
    assert f"page: {page}" in done.stderr
    assert "The promise of explain: kept." in page.read_text()
    assert done.stdout.startswith("faster: throughput")
    assert "slow-rank (rank 3): 1.10× (1.08 to 1.12) predicted, 1.10× (" in done.words
    assert "as predicted; it is gone" in done.words


def test_a_promise_of_records_that_are_no_more_is_not_read(
    compare: Callable[..., Done], sides: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    shutil.copytree(sides / "after", slow)
    for number in range(3):
        run = slow / f"run-{number}"
        whole = (run / "steps/rank-00000.jsonl").read_text()
        (run / "steps/rank-00000.jsonl").write_text("".join(whole.splitlines(keepends=True)[:12]))
        result = ExplainResult.model_validate({**SLOW_RANK, "run": f"after-{number}"})
        cache_explanation(run, read_run(run).record, result)  # as explain did while these records were cut
        (run / "steps/rank-00000.jsonl").write_text(whole)
    done = compare(str(slow), "--with", "before")
    assert done.returncode == 0, done.stderr
    assert "rank 3 is slow" not in done.stdout
    assert "slow-rank" not in done.stdout


SLOW_RANK = {
    "schema": "allpull.explain/1.1",
    "run": "after-0",
    "reference": None,
    "ranks": 2,
    "hosts": 1,
    "window": {"steps": 37, "seconds": 2.0, "first_step": 5, "last_step": 41, "level": "step"},
    "efficiency": None,
    "gains": {},
    "simulation_error": None,
    "clock_error_s": None,
    "phases": {"mean": {}, "per_rank": {}},
    "findings": [
        {
            "rule": "slow-rank",
            "title": "rank 3 is slow",
            "ranks": [3],
            "hosts": [],
            "loss_s_per_step": 0.005,
            "loss_share": 0.1,
            "gain": {"value": 1.1, "low": 1.08, "high": 1.12},
            "remedy": "look at the host of rank 3",
            "evidence": [],
            "wrong_when": "never",
        }
    ],
    "healthy": None,
    "notes": [],
}


def test_narrow_terminals_get_all_of_it(compare: Callable[..., Done]) -> None:
    done = compare("before", "--with", "after", columns=50)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 50
    assert "phases.forward" in done.stdout


def test_words_after_with_are_runs_after_whatever_stands_between() -> None:
    flags = {"--json"}
    assert each_after(["a", "b", "--with", "c", "d"], flags) == ["a", "b", "--with", "c", "--with", "d"]
    assert each_after(["a", "--with=b", "c"], flags) == ["a", "--with=b", "--with", "c"]
    assert each_after(["--with", "b", "--metric", "step_s", "c"], flags) == [
        "--with",
        "b",
        "--metric",
        "step_s",
        "--with",
        "c",
    ]
    assert each_after(["a", "--with"], flags) == ["a"]
