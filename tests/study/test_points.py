"""The points of a study: which there are, what each runs, and that equal settings have equal ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.errors import ConfigError
from allpull.study.file import StudyFile, load_study
from allpull.study.points import Point, points_of
from allpull.study.startable import check_commands

HEAD = '[study]\nname = "a"\nlauncher = "local"\n{settings}\n[run]\n{run}\n'
RECIPE = 'recipe = "digits"'
LONG, FORTY = (str([*range(1, 1 + count)]).replace(" ", "") for count in (300, 40))


def study_of(folder: Path, axes: str, *, run: str = RECIPE, settings: str = "") -> StudyFile:
    path = folder / "study.toml"
    path.write_text(HEAD.format(settings=settings, run=run) + axes, encoding="utf-8")
    return load_study(str(path))


def values(points: list[Point], *names: str) -> list[tuple[object, ...]]:
    return [tuple(point.parameters.get(name) for name in names) for point in points]


def test_axes_multiply_zips_move_together_and_excluded_points_are_left_out(tmp_path: Path) -> None:
    axes = """
    [axes]
    batch = [16, 32]
    [[zip]]
    ranks = [2, 4]
    hosts = [1, 2]
    [[include]]
    ranks = 8
    [[exclude]]
    ranks = 4
    batch = 32
    """
    points = points_of(study_of(tmp_path, axes))
    assert values(points, "ranks", "hosts", "batch") == [(2, 1, 16), (4, 2, 16), (2, 1, 32), (8, 1, 64)]
    assert [point.series for point in points] == [{"batch": 16}, {"batch": 16}, {"batch": 32}, {"batch": 64}]


def test_an_include_is_a_matrix_of_its_own_with_a_label(tmp_path: Path) -> None:
    """The point that two of them make is one point, and what moves with the ranks tells no series apart."""
    axes = """
    [[include]]
    label = "weak"
    zip = { ranks = [1, 2], "data.limit" = [64, 128] }
    [[include]]
    label = "batch"
    ranks = 1
    "data.limit" = 64
    batch = [32, 64]
    """
    points = points_of(study_of(tmp_path, axes))
    assert values(points, "ranks", "data.limit", "batch") == [(1, 64, 64), (2, 128, 64), (1, 64, 32)]
    assert [point.labels for point in points] == [("weak", "batch"), ("weak",), ("batch",)]
    assert [point.series for point in points] == [{"batch": 64}, {"batch": 64}, {"data.limit": 64, "batch": 32}]


def test_an_id_is_that_of_the_resolved_configuration(tmp_path: Path) -> None:
    by_name = points_of(study_of(tmp_path, "[axes]\nranks = [2]\nbatch = [16]\n"))
    by_option = points_of(study_of(tmp_path, '[axes]\nranks = [2]\n"train.batch" = [16]\n'))
    by_default = points_of(study_of(tmp_path, "[axes]\nranks = [2]\nbatch = [64]\n"))
    bare = points_of(study_of(tmp_path, "[axes]\nranks = [2]\n"))
    assert by_name[0].id == by_option[0].id != by_default[0].id == bare[0].id


def test_strong_scaling_fixes_the_global_batch(tmp_path: Path) -> None:
    settings = 'scaling = "strong"\nglobal_batch = 64'
    points = points_of(study_of(tmp_path, "[axes]\nranks = [1, 2]\n", settings=settings))
    assert {point.job.spec.global_batch for point in points if point.job.spec} == {64}
    command = 'command = ["train.py", "--batch={rank_batch}"]'
    points = points_of(study_of(tmp_path, "[axes]\nranks = [1, 2, 4]\n", settings=settings, run=command))
    assert [point.job.options["command"][1] for point in points] == ["--batch=64", "--batch=32", "--batch=16"]
    with pytest.raises(ConfigError, match="cannot be divided evenly among 3 ranks"):
        points_of(study_of(tmp_path, "[axes]\nranks = [3]\n", settings=settings, run=command))


def test_a_command_has_its_placeholders_filled_and_braces_of_its_own(tmp_path: Path) -> None:
    run = 'command = ["train.py", "--lr={lr}", "{{x}}", "{steps}"]\nenv = { MODE = "{mode}" }'
    study = study_of(
        tmp_path, '[axes]\nranks = [2]\nlr = [0.5]\nmode = ["a"]\n"env.EXTRA" = ["1"]\n', run=run, settings="steps = 9"
    )
    job = points_of(study)[0].job
    assert job.options["command"] == ["train.py", "--lr=0.5", "{x}", "9"]
    assert job.environment == {"EXTRA": "1", "MODE": "a"}


def test_parameters_reach_any_key_of_a_cluster(tmp_path: Path) -> None:
    run = """
    [run.cluster_table.cluster]
    hosts = 2
    ranks_per_host = 2
    link = "1 Gbit/s"
    [run.cluster_table.accelerator]
    model = "resnet50"
    forward_ms = 1.0
    """
    points = points_of(
        study_of(tmp_path, '[axes]\nranks = [2, 8]\nbatch = [4]\n"cluster.link" = ["9 Gbit/s"]\n', run=run)
    )
    tables = [point.job.configuration["cluster"] for point in points]
    assert [(table["cluster"]["hosts"], table["cluster"]["ranks_per_host"]) for table in tables] == [(1, 2), (4, 2)]
    assert all(table["accelerator"]["batch"] == 4 and table["cluster"]["link"] == "9 Gbit/s" for table in tables)


@pytest.mark.parametrize(
    ("axes", "run", "named"),
    [
        ("[axes]\nrank = [1]\n", RECIPE, "did you mean 'ranks'?"),
        ('[axes]\n"train.bach" = [1]\n', RECIPE, "did you mean 'train.batch'?"),
        ("[axes]\nranks = [1]\nbatch = [8]\n", 'command = ["train.py"]', "no placeholder {batch}"),
        ("[axes]\nranks = [1]\n", 'command = ["train.py", "{batch}"]', "no axis sets the placeholder {batch}"),
        ("[axes]\nranks = [0]\n", RECIPE, "expected a whole number"),
        ('[axes]\nprecision = ["fp8"]\n', RECIPE, "train.precision"),
        ("", RECIPE, "no point: give"),
        ("[[include]]\nranks = 1\nzip = { ranks = [1] }\n", RECIPE, "include[0].ranks: also in its zip"),
        ("[[include]]\nranks = 1\nlabel = 2\n", RECIPE, "include[0].label: expected a text"),
        ("[axes]\nranks = [1]\n[[exclude]]\nranks = 1\n", RECIPE, "no point is left"),
        (f"[axes]\nranks = {LONG}\nbatch = {LONG}\nthreads = {LONG}\n", RECIPE, "27,000,000 combinations; at most"),
        (
            f"[axes]\nranks = {LONG}\nbatch = {FORTY}\n",
            RECIPE,
            "12,000 points; at most 10,000 are run",
        ),
        ('[axes]\n"env.OMP_NUM_THREADS" = [1]\n', RECIPE, "use the parameter 'threads'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path: Path, axes: str, run: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        points_of(study_of(tmp_path, axes, run=run))
    assert named in str(caught.value)


def test_a_command_that_no_rank_could_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """An option of allpull's own trainer, an unknown one, and a program that starts ranks itself."""
    axes = "[axes]\nranks = [2]\n"
    for run, fault in (
        ('command = ["train.py"]\nset = ["train.lr=0.3"]', "option of allpull's own trainer"),
        ('command = ["train.py"]\nset = ["observe.budgets=1"]', "did you mean 'observe.budget'"),
        ('command = ["torchrun", "train.py"]', "torchrun"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_commands("a", points_of(study_of(tmp_path, axes, run=run)))
        assert fault in "\n".join(refused.value.faults)


def test_ids_do_not_depend_on_secrets_and_tell_points_apart_that_differ_in_what_is_masked(tmp_path: Path) -> None:
    run = (
        'command = ["t.py", "--token", "{secret}", "{{n}}", "--primary-key={{key}}"]\nenv = {{ HF_TOKEN = "{secret}" }}'
    )
    axes = "[axes]\nranks = [1]\nn = [1, 2]\nkey = ['a', 'b']"
    ids = [[point.id for point in points_of(study_of(tmp_path, axes, run=run.format(secret=one)))] for one in "xy"]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 4
