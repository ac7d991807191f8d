"""``[tune]`` of a study file: every fault at once, names with dots, and where the first configuration comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.config.load import load_spec
from allpull.errors import BadInput, ConfigError
from allpull.study.file import load_study
from allpull.study.tune.settings import read_settings
from allpull.study.tune.study_tuning import best_command, best_toml, prepare


def faults(table):
    with pytest.raises(ConfigError) as caught:
        read_settings(table, "study")
    return caught.value.faults


def test_every_fault_is_listed_at_once():
    table = {
        "objective": "fast",
        "trails": 3,
        "space": {"batch": [], "train": {"lr": {"low": 3, "high": 1}}},
        "start": {"workers": 2},
        "fixed": {"batch": 2},
    }
    assert faults(table) == (
        "tune.objective: expected 'epoch_s' or 'throughput' or 'time_to_accuracy_s'; found 'fast'",
        "tune.trails: no such option; did you mean 'trials'?",
        "tune.fixed.batch: also in tune.space",
        "tune.space.batch: no values",
        "tune.space.train.lr: low is below high; found low = 3 and high = 1",
        "tune.start.workers: not in tune.space",
    )


def test_contradictions():
    space = {"batch": [1, 2]}
    assert "no limit" in faults({"space": space})[0]
    assert "needs it" in faults({"space": space, "trials": 3, "objective": "time_to_accuracy_s"})[0]
    assert "tune.budget" in faults({"space": space, "budget": "soon"})[0]
    assert "no parameter" in faults({"trials": 3})[0]
    assert "is not in tune.space" in faults({"trials": 3, "space": space, "start": {"batch": 3}})[0]
    assert "expected some of" in faults({"trials": 3, "space": space, "affects": {"batch": "speed"}})[0]


def test_a_study_without_the_table():
    with pytest.raises(BadInput, match=r"no table \[tune\]"):
        read_settings(None, "study")


RECIPE = """
study.name = "a"
study.steps = 20
run.recipe = "digits"
axes.ranks = [2]
tune.trials = 5
tune.space.batch = [32, 64, 128]
tune.space.train.momentum = [0.0, 0.9]
"""


def study(tmp_path: Path, text: str):
    (tmp_path / "study.toml").write_text(text)
    return load_study(str(tmp_path / "study.toml"))


def test_the_first_configuration_is_the_recipe(tmp_path):
    prepared = prepare(study(tmp_path, RECIPE))
    assert prepared.fixed == {"ranks": 2}
    assert {one.name: one.levels[one.start] for one in prepared.space} == {"batch": 64, "train.momentum": 0.9}


def test_the_best_is_a_recipe_without_the_length_of_the_trials(tmp_path):
    file = study(tmp_path, RECIPE)
    text = best_toml(file, {"ranks": 2, "batch": 128})
    assert "batch = 128" in text
    assert "stop_after" not in text
    (tmp_path / "best.toml").write_text(text)
    spec = load_spec(str(tmp_path / "best.toml"))
    assert (spec.train.batch, spec.launch.ranks, spec.train.stop_after) == (128, 2, 0)
    assert best_command(file, {"ranks": 2, "batch": 128}, Path("best.toml")) == ["allpull", "train", "best.toml"]


def test_an_axis_with_several_values_has_to_be_decided(tmp_path):
    with pytest.raises(ConfigError, match=r"axes.ranks has 2 values: choose one in \[tune.fixed\]"):
        prepare(study(tmp_path, RECIPE.replace("[2]", "[1, 2]")))
    assert prepare(study(tmp_path, RECIPE.replace("[2]", "[1, 2]") + "tune.fixed.ranks = 2\n")).fixed == {"ranks": 2}


def test_a_parameter_that_the_recipe_does_not_have(tmp_path):
    with pytest.raises(ConfigError, match="batsh"):
        prepare(study(tmp_path, RECIPE + "tune.space.batsh = [1, 2]\n"))


def test_the_command_of_the_best_is_the_users_own(tmp_path):
    (tmp_path / "train.py").write_text("")
    text = """
    study.name = "b"
    study.steps = 20
    run.command = ["train.py", "--batch={batch}"]
    axes.ranks = [2]
    tune.trials = 5
    tune.space.batch = [32, 64]
    """
    file = study(tmp_path, text)
    command = best_command(file, {**prepare(file).fixed, "batch": 64}, Path("best.toml"))
    assert command[:4] == ["allpull", "run", "-n", "2"]
    assert command[-1] == "--batch=64"
    assert not any("last_step" in word or "warmup_steps" in word for word in command)
