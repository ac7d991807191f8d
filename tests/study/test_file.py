"""What a study file says is read whole, or every fault in it is listed at once."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from allpull.errors import BadInput, ConfigError, UnknownName
from allpull.study.file import load_study
from allpull.study.toml_text import toml_text

SMALL = """
[study]
name = "small"
steps = 20
repeats = 2
[run]
recipe = "digits"
[axes]
ranks = [1, 2]
batch = [16, 32]
[fit_here.axes]
ranks = [1]
"""


def written(folder: Path, text: str) -> str:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def faults_of(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_study(written(folder, text))
    return caught.value.faults


def test_every_fault_is_listed_at_once_with_what_was_meant(tmp_path: Path) -> None:
    faults = faults_of(
        tmp_path,
        """
        [study]
        name = "a/b"
        repeat = 3
        [run]
        recipe = "digits"
        command = ["train.py"]
        [axis]
        ranks = [1]
        [axes]
        batch = []
        [[zip]]
        ranks = [1, 2]
        hosts = [1]
        """,
    )
    assert any("did you mean 'axes'?" in line for line in faults)
    assert any("did you mean 'study.repeats'?" in line or "did you mean 'repeats'?" in line for line in faults)
    assert any(line.startswith("run: expected exactly one of") for line in faults)
    assert any(line.startswith("axes.batch: expected a list") for line in faults)
    assert any("ranks has 2, hosts has 1" in line for line in faults)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ('timeout = "2 h"\nlimit = "1 h"', "longer than limit"),
        ('scaling = "strong"', "needs study.global_batch"),
        ("global_batch = 256", "only with study.scaling"),
        ("steps = 5", "leaves none"),
        ("half_width = 0.02", "repeats of at least 2"),
        ('timeout = "soon"', "study.timeout"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(tmp_path: Path, settings: str, named: str) -> None:
    text = f'[study]\nname = "a"\n{settings}\n[run]\nrecipe = "digits"\n[axes]\nranks = [1]\n'
    assert any(named in line for line in faults_of(tmp_path, text))


def test_what_fits_here_replaces_lists_and_is_named(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, SMALL), fit_here=True)
    assert study.axes == {"ranks": [1], "batch": [16, 32]}
    assert [(one.what, one.full, one.here) for one in study.changed] == [("axes.ranks", "1, 2", "1")]
    assert not load_study(written(tmp_path, SMALL)).changed


def test_a_study_without_a_smaller_version_says_so(tmp_path: Path) -> None:
    text = SMALL[: SMALL.index("[fit_here")]
    with pytest.raises(BadInput, match="no table"):
        load_study(written(tmp_path, text), fit_here=True)


def test_overrides_change_the_file_or_an_option_of_every_run(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, SMALL), ["study.repeats=5", "axes.ranks=[4]", "train.lr=0.2"])
    assert (study.settings.repeats, study.axes["ranks"], study.run.set) == (5, [4], ("train.lr=0.2",))


def test_an_unknown_study_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownName):
        load_study("no-such-study")


def test_a_study_is_written_as_it_was_read(tmp_path: Path) -> None:
    plain = load_study(written(tmp_path, SMALL)).plain
    assert tomllib.loads(toml_text(plain)) == plain
    odd = {"a b": {"x": 'quo"te\\n', "list": [1.5, True, {"k": "ü"}]}, "faults": [{"kind": "jitter", "p": {"q": 1}}]}
    assert tomllib.loads(toml_text(odd)) == odd


def test_a_pipe_without_a_writer_is_no_study(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(BadInput, match="not a regular file"):
        load_study(str(tmp_path / "pipe.toml"))
