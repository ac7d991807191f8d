"""Whatever is wrong with the input: one clear error, exit code 2, no traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from allpull.cli import progress

pytestmark = pytest.mark.slow


def refused(done, *expected: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    for text in expected:
        assert text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert done.stdout == ""


def test_an_unknown_recipe_is_named_with_the_nearest(run_cli, tmp_path):
    refused(run_cli("train", "digts", cwd=tmp_path), "no recipe 'digts'", "did you mean 'digits'?")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_option_is_named_with_the_nearest(run_cli, tmp_path):
    refused(run_cli("train", "digits", "--rank", "2", cwd=tmp_path), "--rank", "--ranks")
    refused(run_cli("trian", cwd=tmp_path), "trian")


def test_no_recipe_at_all(run_here, tmp_path):
    refused(run_here("train", cwd=tmp_path), "no recipe was given", "digits")


def test_all_faults_of_a_file_and_of_the_options_are_reported_at_once(run_here, tmp_path):
    (tmp_path / "mine.toml").write_text('nam = "x"\n[train]\nepochs = 0\nlr = "fast"\n[data]\nnmae = "digits"\n')
    done = run_here("train", "mine.toml", "--set", "model.widht=3", "--set", "launch.ranks=-1", cwd=tmp_path)
    refused(done, "nam", "name", "train.epochs", "train.lr", "data.nmae", "model.widht", "width", "launch.ranks")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (("--set", "train.epochs"), "train.epochs"),
        (("--launcher", "slrum"), "no launcher 'slrum'"),
        (("--set", "data.name=cifar"), "no data set 'cifar'"),
        (("-n", "0"), "launch.ranks"),
        (("--set", "train.global_batch=1", "-n", "2"), "global_batch"),
        (("--set", "model.head=flatten", "-n", "2"), "model.name = resnet8 has no such option"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(run_here, tmp_path, option, expected):
    refused(run_here("train", "digits", *option, cwd=tmp_path), expected)
    assert not (tmp_path / "runs").exists()


def test_what_a_rank_would_miss_is_missed_before_any_starts(run_here, tmp_path):
    done = run_here("train", "digits", "--set", "model.name=resnt8", cwd=tmp_path)
    refused(done, "allpull: no model 'resnt8'; did you mean 'resnet8'?")
    done = run_here("train", "fashion-mnist", "--set", f"data.path={tmp_path}/none", cwd=tmp_path)
    refused(done, "no Fashion-MNIST at", "hint: apt install dataset-fashion-mnist")
    done = run_here("train", "digits", "--resume", "nowhere", cwd=tmp_path)
    refused(done, "nowhere: no such file or directory")
    done = run_here("train", "digits", "--set", "model.weights=nowhere.pt", cwd=tmp_path)
    refused(done, "allpull: model.weights: no file nowhere.pt", "hint: give a state_dict")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_is_no_text_is_refused(run_cli, tmp_path):
    refused(run_cli("train", "digits", "--out", "bad\udcff", cwd=tmp_path), "not UTF-8")


def test_a_terminal_without_our_signs_gets_question_marks(run_cli, stored_run):
    done = run_cli("show", str(stored_run), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr


def test_markup_in_a_name_does_nothing_to_the_progress_bar():
    written = StringIO()
    columns = [column for column in progress.columns() if isinstance(column, TextColumn)]
    with Progress(*columns, console=Console(file=written, force_terminal=True)) as bar:
        bar.add_task("[/x]<b>", state="[red]")
    assert "[/x]<b>" in written.getvalue()


@pytest.mark.parametrize("ranks", ["", "0", "1,1", "1,x", "-1", "1;2", "²"])
def test_rank_counts_that_are_none(run_here, tmp_path, ranks):
    refused(run_here("demo", "--ranks", ranks, cwd=tmp_path), "is not a list of rank counts")


@pytest.mark.parametrize("verb", ["show", "report"])
def test_a_run_directory_that_is_none(run_here, tmp_path, verb):
    refused(run_here(verb, str(tmp_path / "nowhere")), "nowhere")
    refused(run_here(verb, str(tmp_path)), str(tmp_path))


@pytest.fixture
def stored_run(tmp_path) -> Path:
    """A copy of the small real run that stays in the tests."""
    source = Path(__file__).parent.parent / "runs/v1.0"
    target = tmp_path / "run"
    shutil.copytree(source, target)
    return target


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_newer_schema_says_upgrade(run_here, stored_run):
    edit(stored_run / "run.json", schema="allpull.run/2.0")
    refused(run_here("show", str(stored_run)), "newer allpull", "upgrade")


def test_a_newer_minor_schema_with_unknown_fields_reads(run_here, stored_run):
    edit(stored_run / "run.json", schema="allpull.run/1.7", later="x")
    assert run_here("show", str(stored_run)).returncode == 0


def test_a_half_written_run_says_what_is_missing(run_here, stored_run):
    (stored_run / "run.json").write_text('{"schema": "allpull.run/1.0", "id"')
    refused(run_here("show", str(stored_run)), "run.json")
    (stored_run / "run.json").unlink()
    refused(run_here("show", str(stored_run)), "run.json")


def test_a_corrupted_line_is_named_and_can_be_skipped(run_here, stored_run):
    path = stored_run / "steps/rank-00001.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:40] + "\x00\xff"
    path.write_text("\n".join(lines) + "\n")
    refused(run_here("show", str(stored_run)), "rank-00001.jsonl", "4", "--skip-damaged")
    done = run_here("show", str(stored_run), "--skip-damaged", "--json")
    assert done.returncode == 0
    assert any("rank-00001" in gap or "rank 1" in gap for gap in json.loads(done.stdout)["runs"][0]["gaps"])


def test_a_null_metric_is_not_measured_and_never_0(run_here, stored_run):
    path = stored_run / "events/rank-00000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("name") == "test_top1":
            line["value"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run_here("show", str(stored_run), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"][0]["accuracy"] is None


def test_a_null_where_a_number_must_be_is_named(run_here, stored_run):
    path = stored_run / "steps/rank-00000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["end_ns"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(run_here("show", str(stored_run)), "rank-00000.jsonl", "end_ns")


def test_a_record_file_past_its_budget_is_refused(run_here, stored_run):
    path = stored_run / "steps/rank-00000.jsonl"
    header, *rest = path.read_text().splitlines()
    small = json.dumps({**json.loads(header), "budget": 100})
    path.write_text("\n".join([small, *rest]) + "\n")
    refused(run_here("show", str(stored_run)), "rank-00000.jsonl", "budget")


def test_hostile_names_act_on_neither_terminal_nor_page(run_cli, stored_run, tmp_path):
    hostile = "x\x1b]0;owned\x07\x1b[31m\"'<script>alert(1)</script>\n</title>[bold]"
    edit(stored_run / "run.json", name=hostile, command=[hostile], hosts=[hostile])
    shown = run_cli("show", str(stored_run))
    assert shown.returncode == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert "\x07" not in shown.stdout
    page = tmp_path / "page.html"
    assert run_cli("report", str(stored_run), "-o", str(page)).returncode == 0
    text = page.read_text()
    assert "<script>alert(1)" not in text
    assert "\x1b" not in text


def test_a_full_disk_is_one_clear_error(run_cli, stored_run):
    """/dev/full takes no byte; the report is written beside its place and renamed, so a folder is tried too."""
    done = run_cli("report", str(stored_run), "-o", "/dev/full/report.html")
    refused(done, "/dev/full")
    done = run_cli("report", str(stored_run), "-o", str(stored_run / "run.json" / "x.html"))
    refused(done, "x.html")


def test_training_without_torch_says_what_to_install(run_cli, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else real(name, *rest)\n"
        "sys.modules['torch'] = None\n"
    )
    done = run_cli("train", "digits", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    refused(done, "torch", "not installed", "pip install")
    assert not (tmp_path / "runs").exists()


def test_a_reader_that_goes_away_is_no_error(run_cli, stored_run):
    command = f"{sys.executable} -m allpull show {stored_run} --json | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
