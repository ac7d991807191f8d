"""A student's program: right ones pass, and each usual mistake is named, whether it is simulated or really run."""

import json
from importlib.resources import files

import numpy as np
import pytest

from allpull.errors import BadInput
from allpull.labs import line
from allpull.labs.sgd import SgdLab, run_sgd
from allpull.labs.sgd_page import page
from allpull.labs.sgd_program import Task, check_program, read_path
from allpull.report.page import render_page

POINTS = line.samples(90, 0)
TASK = Task(points=POINTS, batch=40, ranks=2, epochs=3, rate=0.5, seed=0)  # 10 samples of an epoch are left out


def paths(mistake: str = "", single: bool = False) -> list[line.Floats]:
    """Paths of two ranks, by numpy alone; ``single``: computed in single precision."""
    kind = np.float32 if single else np.float64
    x, y = POINTS.x.astype(kind), POINTS.y.astype(kind)
    places = [np.array(line.START, dtype=kind) + (rank if mistake == "start" else 0) for rank in range(2)]
    walked = [[place] for place in places]
    for epoch in range(3):
        order = np.random.default_rng((0, epoch)).permutation(90)
        for begin in (0, 40):
            gradients = []
            for rank, (slope, offset) in enumerate(places):
                first = begin + (0 if mistake == "same samples" else 20 * rank)
                mine = order[first : first + 20]
                left = slope * x[mine] + offset - y[mine]
                gradients.append(2 * np.array([np.mean(left * x[mine]), np.mean(left)], dtype=kind))
            for rank in range(2):
                applied = np.mean(gradients, axis=0)
                if mistake == "own gradient":
                    applied = gradients[rank]
                if mistake == "sum":
                    applied = np.sum(gradients, axis=0)
                if mistake == "no update" and rank == 1 and epoch:
                    applied = 0 * applied
                if mistake == "weight decay":
                    applied = applied + places[rank] / 10
                places[rank] = places[rank] - kind(0.5) * applied
                walked[rank].append(places[rank])
    return [np.array(path, dtype=np.float64) for path in walked]


@pytest.mark.parametrize("single", [False, True])
def test_a_program_that_is_right_passes(single):
    check = check_program("mine.py", TASK, paths(single=single))
    assert (check.update, check.rank, check.fault) == (None, None, None)


@pytest.mark.parametrize(
    ("mistake", "update", "fault"),
    [
        ("start", 0, "start"),
        ("own gradient", 1, "own gradient"),
        ("sum", 1, "sum"),
        ("same samples", 1, "same samples"),
        ("no update", 3, "no update"),
        ("weight decay", 1, None),
    ],
)
def test_a_mistake_is_named(mistake, update, fault):
    check = check_program("mine.py", TASK, paths(mistake))
    assert (check.update, check.rank, check.fault) == (update, 1, fault)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"path": 3}', '{"path": [[1, 2]]}', '{"path": [[NaN, 0], [0, 0], [0, 0], [0, 0]]}', "[" * 9000],
)
def test_what_is_no_path_is_refused(text, tmp_path):
    file = tmp_path / "rank-0.json"
    if text:
        file.write_text(text)
    with pytest.raises(BadInput, match=r"mine\.py") as raised:
        read_path(file, TASK, "mine.py")
    assert "slope, offset" in raised.value.hint


def test_gradients_are_optional_and_those_of_another_shape_are_left_out(tmp_path):
    file = tmp_path / "rank-0.json"
    file.write_text(json.dumps({"path": [[0, 0]] * 7, "gradient": [[1, 2]]}))
    assert read_path(file, TASK, "mine.py").gradient.size == 0


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"program": "absent.py", "ranks": 2}, "no such file"),
        ({"program": "mine.py"}, "one rank"),
        ({"program": "mine.py", "ranks": 2, "without": "average"}, "--without"),
    ],
)
def test_what_cannot_be_checked_is_refused(fields, word, tmp_path):
    (tmp_path / "mine.py").touch()
    with pytest.raises(BadInput, match=word):
        run_sgd(SgdLab(**{**fields, "program": tmp_path / fields["program"]}), tmp_path)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.parametrize("fault", [None, "own gradient"])
def test_a_real_program_is_checked(fault, tmp_path):
    source = files("allpull.labs.programs").joinpath("sgd_ddp.py").read_text()
    if fault:
        source = source.replace("DistributedDataParallel(line)", "line").replace('data["start"][0] + rank', "2.0")
        source = source.replace("line.weight.fill_(2.0)", 'line.weight.fill_(data["start"][0])')
    (tmp_path / "mine.py").write_text(source)
    result = run_sgd(SgdLab(ranks=2, epochs=2, program=tmp_path / "mine.py"), tmp_path / "runs")
    assert result.program.fault == fault
    text = render_page(page(result))
    assert ("mine.py is right" in text) == (fault is None)
    assert ("nobody averaged" in text) == (fault is not None)
