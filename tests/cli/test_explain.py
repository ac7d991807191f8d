"""``allpull explain``: words for people, one JSON object for programs, the manual; and every input that is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from allpull.explain.manual import HEADINGS
from allpull.explain.rules import names
from allpull.rundir.derived import cached_explanation
from allpull.rundir.read.run import read_run
from allpull.schema.base import tag
from allpull.schema.document import json_schema
from allpull.schema.explained import ExplainResult

RUNS = Path(__file__).resolve().parents[1] / "runs"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy of a run that a version before this one recorded."""
    return Path(shutil.copytree(RUNS / "v1.1", tmp_path / "kept"))


def refused(done, *expected: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    for text in expected:
        assert text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_it_says_where_the_time_went_and_what_to_do(run_cli, kept):
    done = run_cli("explain", str(kept))
    assert done.returncode == 0, done.stderr
    for words in ("2 ranks on 1 host", "parallel efficiency", "between the known phases", "What to do:", "It costs"):
        assert words in done.stdout
    assert done.stderr == ""


def test_json_is_one_object_that_its_schema_describes(run_here, kept):
    done = run_here("explain", str(kept), "--json")
    answer = json.loads(done.stdout)
    assert next(iter(answer.items())) == ("schema", tag("explain"))
    Draft202012Validator(json_schema("explain")).validate(answer)
    result = ExplainResult.model_validate(answer)
    tree = result.efficiency
    assert tree is not None
    factors = (tree.transfer, tree.input, tree.sequential, tree.orchestration, tree.serialisation, tree.load_balance)
    product = 1.0
    for factor in factors:
        product *= factor.value
    assert product == pytest.approx(tree.parallel.value, rel=1e-9)
    gains = [one.gain.value for one in result.findings if one.gain is not None]
    assert gains == sorted(gains, reverse=True)


def test_what_was_found_is_kept_beside_the_run(run_here, kept):
    done = run_here("explain", str(kept), "--json")
    found = cached_explanation(kept, read_run(kept).record)
    assert found is not None
    assert found.model_dump_json(by_alias=True, indent=1) == done.stdout.strip()


def test_nothing_is_kept_outside_of_the_run_directory(run_here, kept, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(kept / "derived", ignore_errors=True)
    (kept / "derived").symlink_to(elsewhere)
    assert run_here("explain", str(kept)).returncode == 0
    assert list(elsewhere.iterdir()) == []


def test_against_a_reference_computation_is_compared(run_here, kept):
    done = run_here("explain", str(kept), "--reference", str(kept), "--json")
    tree = json.loads(done.stdout)["efficiency"]
    assert tree["computational"]["value"] == pytest.approx(1.0)
    assert tree["global"]["value"] == pytest.approx(tree["parallel"]["value"], rel=0.05)
    shown = run_here("explain", str(kept), "--reference", str(kept)).stdout
    assert "computational scaling" in shown
    assert "global efficiency" in shown


def test_a_reference_of_another_program_is_refused_and_an_edited_script_is_noted(run_here, kept, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(kept, other)
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**record, "script_sha256": "0" * 64}))
    edited = run_here("explain", str(kept), "--reference", str(other), "--json")
    assert edited.returncode == 0
    assert json.loads(edited.stdout)["notes"][0].startswith("The script is not the same as in reference")
    (other / "run.json").write_text(json.dumps({**record, "command": ["allpull", "run", "--", "unlike.py"]}))
    refused(run_here("explain", str(kept), "--reference", str(other)), "is of another program")


def test_the_manual_names_every_rule(run_here):
    done = run_here("explain", "--rules")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")] == names()


def test_a_page_of_the_manual_has_its_headings(run_here):
    done = run_here("explain", "--rule", "slow-rank")
    assert [line for line in done.stdout.splitlines() if line in HEADINGS] == list(HEADINGS)
    page = json.loads(run_here("explain", "--rule", "slow-rank", "--json").stdout)
    assert page["schema"] == tag("rules")
    assert list(page["rules"][0]["sections"]) == list(HEADINGS)


def test_a_rule_that_there_is_not(run_cli):
    refused(run_cli("explain", "--rule", "slow-rnak"), "no rule 'slow-rnak'", "did you mean 'slow-rank'?", "--rules")


def test_no_run_at_all_and_no_run_there(run_here, tmp_path):
    refused(run_here("explain"), "no run is named", "--rules")
    refused(run_here("explain", str(tmp_path / "nothing")), "nothing")
    refused(run_here("explain", str(tmp_path)), "run.json")


def test_of_a_folder_of_several_runs_it_takes_the_newest_as_watch_does_and_names_it(run_here, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(RUNS / "v1.1", tmp_path / name)
    for verb in (("explain",), ("watch", "--once")):
        done = run_here(*verb, str(tmp_path))
        assert done.returncode == 0
        assert "two" in done.stderr.splitlines()[0]
    shutil.rmtree(tmp_path / "two")
    assert run_here("explain", str(tmp_path)).returncode == 0


def test_watch_of_a_failed_job_ends_with_3_for_scripts(run_here, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(RUNS / "v1.1", run)
    record = json.loads((run / "run.json").read_text())
    for status, code in (("completed", 0), ("failed", 3), ("cancelled", 0)):
        exit_ = {"code": int(status == "failed"), "rank": None, "host": None, "signal": None, "exception": None}
        (run / "run.json").write_text(json.dumps(record | {"status": status, "exit": exit_}))
        assert [run_here("watch", option, str(run)).returncode for option in ("--once", "--json")] == [code, code]


def test_a_missing_rank_is_said_and_nothing_is_made_up(run_here, kept):
    (kept / "steps/rank-00001.jsonl").unlink()
    answer = json.loads(run_here("explain", str(kept), "--json").stdout)
    assert (answer["efficiency"], answer["findings"], answer["healthy"]) == (None, [], None)
    assert any("rank 1" in note for note in answer["notes"])
    assert "Nothing can be explained" in run_here("explain", str(kept)).stdout


def test_a_damaged_line_is_refused_or_left_out(run_here, kept):
    path = kept / "steps/rank-00000.jsonl"
    lines = path.read_text().splitlines()
    lines[40] = '{"step": "forty"}'
    path.write_text("\n".join(lines) + "\n")
    refused(run_here("explain", str(kept)), "rank-00000.jsonl")
    done = run_here("explain", str(kept), "--skip-damaged", "--json")
    assert done.returncode == 0, done.stderr
    assert any("left out" in note or "damaged" in note for note in json.loads(done.stdout)["notes"])


def test_names_that_act_on_a_terminal_are_shown_as_text(run_cli, kept):
    hostile = "[red]\x1b]0;owned\x07\x1b[31mnode\n"
    for path in sorted(kept.glob("*/rank-*.jsonl")):
        header, _, body = path.read_text().partition("\n")
        path.write_text(json.dumps({**json.loads(header), "host": hostile}) + "\n" + body)
    done = run_cli("explain", str(kept))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
