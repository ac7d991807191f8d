"""The public API: data frames that agree with the metrics, results that show themselves, jobs that are waited for."""

from __future__ import annotations

import inspect
import json
import pickle
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import allpull
from allpull.analyse import frames
from allpull.analyse.aligned import AlignedRun
from allpull.api import comparison, jobs, verbs
from allpull.api.explanation import kept_explanation
from allpull.api.jobs import _origin
from allpull.errors import BadInput, ConfigError, UnknownName
from allpull.jobs import start
from allpull.schema.explained import ExplainResult
from allpull.schema.run import Exit

RUNS = Path(__file__).resolve().parents[1] / "runs"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Copies of two kept runs, because an explanation is kept beside its run."""
    for version in ("v1.2", "v1.3"):
        shutil.copytree(RUNS / version, tmp_path / "runs" / version)
    return tmp_path / "runs"


@pytest.fixture
def run(runs: Path) -> allpull.Run:
    return allpull.open_run(str(runs / "v1.3"))


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("steps", frames.STEPS),
        ("phases", frames.PHASES),
        ("collectives", frames.COLLECTIVES),
        ("counters", frames.COUNTERS),
    ],
)
def test_frames_have_the_documented_columns_in_float_seconds(run: allpull.Run, name: str, columns: dict) -> None:
    frame = getattr(run, name)
    assert frame.columns == list(columns)
    assert frame.height
    assert {frame.schema[column] for column in columns if column.endswith("_s")} == {pl.Float64()}


def test_a_frame_becomes_one_of_pandas(run: allpull.Run) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    steps = run.steps.to_pandas()
    assert list(steps.columns) == run.steps.columns
    assert steps["step_s"].mean() == pytest.approx(run.steps["step_s"].mean())


def test_phases_are_those_of_the_metrics_and_sum_to_the_steps(run: allpull.Run) -> None:
    means = run.metrics().phases
    for name, mean in means.items():
        assert run.phases[f"{name}_s"].mean() == (None if mean is None else pytest.approx(mean))
    sums = run.phases.select("rank", "step", sum_s=pl.sum_horizontal(pl.exclude("rank", "step")))
    both = sums.join(run.steps.filter("steady"), on=["rank", "step"], how="left")
    assert both.height == sums.height == 2 * run.metrics().steady.used
    assert (both["sum_s"] - both["step_s"]).abs().max() < 1e-6


def test_waiting_and_transfer_of_a_call_sum_to_what_it_blocked(run: allpull.Run) -> None:
    matched = run.collectives.drop_nulls("wait_s")
    assert matched.height
    assert (matched["wait_s"] + matched["transfer_s"] - matched["blocked_s"]).abs().max() < 1e-9


def test_moments_count_from_the_first_step_in_order(run: allpull.Run) -> None:
    assert run.steps["begin_s"].min() == 0
    assert run.steps.sort("rank", "step")["begin_s"].is_sorted() is False  # rank 1 begins again near 0
    assert run.steps.filter(pl.col("rank") == 0).sort("step")["begin_s"].is_sorted()
    assert run.counters["at_s"].max() > run.steps["begin_s"].max() - 5


class Balanced(HTMLParser):
    """Which elements were opened, and that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in {"br", "path", "line", "rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"br", "path", "line", "rect"}:
            assert self.open.pop() == tag


def test_results_show_themselves_in_a_few_lines_and_in_a_notebook(run: allpull.Run, runs: Path) -> None:
    compared = allpull.compare(runs / "v1.2", run, anyway=True)
    shown = [(run, {"svg"}), (run.metrics(), {"svg"}), (run.explain(), {"svg", "li"}), (compared, {"table"})]
    for result, elements in [*shown, (allpull.scaling(runs), {"svg"})]:
        assert 2 <= len(repr(result).splitlines()) <= 8, repr(result)
        assert "object at" not in repr(result)
        page = Balanced()
        page.feed(result._repr_html_())
        assert page.open == []
        assert elements <= page.seen
        assert "script" not in page.seen


def test_a_name_is_text_wherever_it_is_shown(run: allpull.Run) -> None:
    hostile = run.metrics().model_copy(update={"name": "<script>alert(1)</script>"})
    assert "<script" not in type(hostile).of(hostile)._repr_html_()


def test_a_report_of_several_is_one_file(runs: Path, tmp_path: Path) -> None:
    page = allpull.report(allpull.open_runs(runs), tmp_path / "report.html")
    assert page == tmp_path / "report.html"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_run_outlives_a_change_of_the_working_directory(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.parent)
    run = allpull.open_run("runs/v1.3")
    (runs.parent / "sub").mkdir()
    monkeypatch.chdir("sub")
    run.explain()
    assert not list(Path().iterdir())
    assert (run.directory / "derived" / "explain.json").is_file()
    assert run.metrics().directory == "runs/v1.3"  # results name it as it was given
    assert allpull.compare(runs / "v1.2", run, anyway=True).after[0].directory == "runs/v1.3"


def test_a_run_that_was_deleted_is_not_begun_anew(run: allpull.Run) -> None:
    run.metrics()
    shutil.rmtree(run.directory)
    run.explain()
    assert not run.directory.exists()


def test_a_run_has_one_list_of_gaps(run: allpull.Run) -> None:
    assert run.gaps == tuple(run.metrics().gaps)
    assert len(run.gaps) > len(run.data.gaps)
    assert f"{len(run.gaps)} gap" in repr(run)


def test_what_a_run_is_called_cannot_act_on_a_terminal(run: allpull.Run) -> None:
    record = run.data.record.model_copy(update={"id": "a\x1b]0;title\x07b"})
    assert repr(allpull.Run(replace(run.data, record=record))).startswith("Run ab: ")


def test_results_can_be_sent_to_another_process(run: allpull.Run, runs: Path) -> None:
    compared = allpull.compare(runs / "v1.2", run, anyway=True)
    for result in (run.metrics(), run.explain(runs / "v1.2"), allpull.scaling(runs), compared):
        received = pickle.loads(pickle.dumps(result))
        assert received == result
        assert received._repr_html_() == result._repr_html_()


def test_compared_runs_are_never_in_memory_together(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[AlignedRun] = weakref.WeakSet()
    most = 0

    def counted(run: AlignedRun) -> ExplainResult:
        nonlocal most
        alive.add(run)
        most = max(most, len(alive))
        return kept_explanation(run)

    monkeypatch.setattr(comparison, "kept_explanation", counted)
    compared = allpull.compare(runs / "v1.2", runs / "v1.3", anyway=True)
    assert (most, len(alive)) == (1, 0)
    assert compared._repr_html_()


def test_compared_runs_of_one_name_have_explanations_of_their_own(runs: Path) -> None:
    own = {version: allpull.open_run(runs / version).explain().efficiency for version in ("v1.2", "v1.3")}
    record = runs / "v1.3" / "run.json"
    first = json.loads((runs / "v1.2" / "run.json").read_text())["id"]
    record.write_text(json.dumps(json.loads(record.read_text()) | {"id": first}))
    compared = allpull.compare(runs / "v1.2", runs / "v1.3", anyway=True)
    (parallel,) = (one for one in compared.metrics if one.metric == "efficiency.parallel")
    assert own["v1.2"] is not None
    assert own["v1.3"] is not None
    assert own["v1.2"].parallel.value != own["v1.3"].parallel.value
    assert (parallel.before, parallel.after) == (own["v1.2"].parallel.value, own["v1.3"].parallel.value)


def test_one_metric_and_one_gate_need_no_list(runs: Path) -> None:
    compared = allpull.compare(
        runs / "v1.2", runs / "v1.3", metrics="throughput", fail_if="throughput < -30%", between_run=0.01, anyway=True
    )
    assert [change.metric for change in compared.metrics] == ["throughput"]
    assert [gate.outcome for gate in compared.gates] == ["passed"]
    with pytest.raises(BadInput, match="not between 0 and 100 %"):
        allpull.compare(runs / "v1.2", runs / "v1.3", between_run=1.5)


def test_no_place_is_no_run() -> None:
    with pytest.raises(BadInput, match="no run was given"):
        allpull.open_runs([])


def test_every_verb_can_leave_out_damaged_lines(runs: Path, tmp_path: Path) -> None:
    with (runs / "v1.3/steps/rank-00001.jsonl").open("a") as file:
        file.write("damaged\n{}\n")
    with pytest.raises(allpull.RunDirError, match="rank-00001"):
        allpull.scaling(runs)
    assert len(allpull.scaling(runs, skip_damaged=True).runs) == 2
    assert allpull.explain(runs / "v1.3", runs / "v1.2", skip_damaged=True).ranks == 2
    assert allpull.open_run(runs / "v1.2").explain(runs / "v1.3", skip_damaged=True).ranks == 2
    assert allpull.report(runs, tmp_path / "report.html", skip_damaged=True).is_file()


def test_a_folder_of_several_runs_is_no_run(runs: Path) -> None:
    with pytest.raises(BadInput, match="2 runs"):
        allpull.open_run(runs)
    assert [run.id for run in allpull.open_runs([runs, runs / "v1.2"])] == [run.id for run in allpull.open_runs(runs)]


def test_the_import_needs_the_standard_library_alone_and_packages_stay_packages() -> None:
    code = (
        "import sys, allpull\n"
        "allpull.metric('x', 1.0)\n"
        "assert not {'polars', 'pydantic', 'numpy', 'typer', 'rich'} & set(sys.modules), sys.modules.keys()\n"
        "import allpull.compare.gate as gate; from allpull.train import models; import allpull.explain.manual\n"
        "assert allpull.explain.manual.summary and allpull.compare.gate is gate\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_face_lists_what_it_offers() -> None:
    assert set(dir(allpull)) == {*allpull.API, "phase", "step", "epoch", "metric", "__version__"}
    assert all(getattr(allpull, name) for name in allpull.__all__)


@pytest.mark.parametrize("function", [verbs.explain, verbs.report, comparison.compare, jobs.train])
def test_a_package_with_the_name_of_a_function_is_called_like_it(function: Callable[..., object]) -> None:
    offered = getattr(allpull, function.__name__)
    assert inspect.signature(offered) == inspect.signature(function)
    assert offered.__doc__ == function.__doc__
    assert pickle.loads(pickle.dumps(offered)) is offered
    with pytest.raises(TypeError, match=r"missing .* required positional argument"):
        offered()


def test_the_origin_is_a_command_line() -> None:
    assert _origin({"ranks": 2, "launcher": None, "sets": ["train.epochs=3"]}, {"--name": "n"}) == [
        "--ranks", "2", "--name", "n", "--set", "train.epochs=3"
    ]  # fmt: skip


@pytest.mark.torch
def test_what_cannot_be_started_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'digits'"):
        allpull.train("digts", out=tmp_path)
    with pytest.raises(ConfigError, match="set by ranks=-1") as caught:
        allpull.train("digits", ranks=-1, out=tmp_path, train__epoch=3)
    assert any("did you mean 'train.epochs'? (set by train__epoch=3)" in fault for fault in caught.value.faults)
    with pytest.raises(allpull.BadInput, match="launcher slurm without a number of ranks"):
        allpull.run("train.py", launcher="slurm", out=tmp_path)
    with pytest.raises(allpull.AllpullError, match="command not found"):
        allpull.run("no-such-program --fast", out=tmp_path)


def test_a_command_line_that_does_not_end_is_named() -> None:
    with pytest.raises(BadInput, match="'python \"x' cannot be split into words: no closing quotation"):
        allpull.run('python "x')


@pytest.mark.torch
def test_a_start_that_takes_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "START_S", 0.0)
    with pytest.raises(allpull.AllpullError, match="did not start within"):
        allpull.train("digits", out=tmp_path)


@pytest.mark.parametrize(
    ("status", "exit_", "code", "shown"),
    [
        ("cancelled", Exit(code=143), 143, "the job was cancelled"),
        ("cancelled", Exit(code=143, reason="no host answers"), 143, "the job was cancelled: no host answers"),
        ("failed", Exit(code=3), 3, "the job failed: exit code 3"),
        ("failed", Exit(code=137, rank=1, host="n1", signal="SIGKILL"), 137, "rank 1 on n1 was ended by SIGKILL"),
        ("running", None, -9, "the job failed: SIGKILL ended its process"),
    ],
)
def test_the_record_says_how_a_job_ended(
    run: allpull.Run, status: str, exit_: Exit | None, code: int, shown: str
) -> None:
    record = run.data.record.model_copy(update={"status": status, "exit": exit_})
    assert jobs._ending(record, code).removeprefix("the job failed: ") == shown.removeprefix("the job failed: ")


@pytest.mark.ranks
def test_a_training_is_followed_and_opened(tmp_path: Path) -> None:
    lines: list[str] = []
    job = allpull.train("digits", ranks=1, out=tmp_path, train__epochs=1)
    run = job.wait(progress=lambda progress: lines.append(str(progress)), every_s=0.2)
    assert (run.status, run.ranks, run.directory) == ("completed", 1, job.directory)
    assert lines[-1].startswith("completed")
    assert run.data.record.command[:4] == ["allpull", "train", "digits", "--ranks"]
    assert run.steps.height


@pytest.mark.ranks
def test_a_command_that_fails_says_so_and_its_run_stays(tmp_path: Path) -> None:
    job = allpull.run([sys.executable, "-c", "raise SystemExit(3)"], out=tmp_path)
    with pytest.raises(allpull.JobFailed, match="exit code 3") as caught:
        job.wait()
    assert caught.value.directory == job.directory
    assert allpull.open_run(job.directory).status == "failed"


@pytest.mark.ranks
def test_a_job_can_be_cancelled(tmp_path: Path) -> None:
    job = allpull.train("digits", ranks=1, out=tmp_path, train__epochs=1000)
    job.cancel()
    assert job.done
    with pytest.raises(allpull.JobFailed, match=r"the job was cancelled$"):
        job.wait()
    assert allpull.open_run(job.directory).status == "cancelled"
