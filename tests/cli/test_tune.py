"""``allpull tune``: real runs, the same command again, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from allpull.cli import app
from allpull.errors import MissingPart
from allpull.study.tune.search import optuna_or_hint

STUDY = """
study.name = "two"
study.launcher = "local"
study.steps = 40
run.recipe = "digits"
axes.ranks = [1]
tune.trials = 2
tune.confirm = 1
tune.space.batch = [64, 128]
"""


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingPart, match="needs the package optuna") as caught:
        optuna_or_hint()
    assert caught.value.hint == "pip install 'allpull[tune]'"


def test_a_study_without_tune_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text('study.name = "a"\nrun.recipe = "digits"\naxes.ranks = [1]\n')
    done = CliRunner().invoke(app, ["tune", "study.toml"])
    assert done.exit_code == 2
    assert "no table [tune]" in done.stderr
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_two_configurations_and_the_same_command_again(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    done = CliRunner().invoke(app, ["tune", "study.toml", "--json"])
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    first, second = result["trials"]
    assert (first["parameters"], first["proposed_by"], first["state"]) == ({"batch": 64}, "start", "completed")
    assert second["parameters"] == {"batch": 128}
    assert first["value"]["value"] > 0
    folder = tmp_path / "studies" / "two" / "tune"
    runs = sorted(path.name for path in (folder / "runs").iterdir())
    is_better = result["best"] == {"batch": 128}
    assert len(runs) == (4 if is_better else 2)
    assert "stop_after" not in (folder / "best.toml").read_text()

    again = CliRunner().invoke(app, ["tune", "study.toml", "--json"])
    assert json.loads(again.stdout)["trials"] == result["trials"]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == runs, "nothing is run twice"

    changed = CliRunner().invoke(app, ["tune", "study.toml", "--set", "train.lr=0.2"])
    assert changed.exit_code == 2
    assert "differs from the one tuned" in changed.stderr
