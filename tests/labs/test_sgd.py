"""The lab of gradient descent: what it refuses, one rank here, and real ranks that stay equal or part."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from allpull.errors import BadInput
from allpull.labs import line
from allpull.labs.sgd import SgdLab, run_sgd
from allpull.labs.sgd_page import page
from allpull.report.page import render_page
from allpull.schema.labs import SgdResult


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"ranks": 3}, "divided"),
        ({"ranks": 2, "batch": 1}, "divided"),
        ({"ranks": 10_000}, "CPU"),
        ({"batch": 0}, "batch"),
        ({"batch": 1001}, "batch"),
        ({"samples": 1}, "points"),
        ({"rate": float("nan")}, "rate"),
        ({"epochs": 0}, "epochs"),
        ({"batch": 1, "epochs": 10**6}, "updates"),
        ({"without": "average"}, "one rank"),
    ],
)
def test_what_cannot_be_done_is_refused(fields, word, tmp_path):
    with pytest.raises(BadInput, match=word):
        run_sgd(SgdLab(**fields), tmp_path)


def test_one_rank_tells_its_facts():
    result = run_sgd(SgdLab(batch=1000))
    assert result.loss_end == pytest.approx(1 / 12, rel=0.06)
    assert result.shrinks == pytest.approx(1 / 12, rel=1e-3)
    assert (result.updates, result.apart, result.differ) == (150, 0.0, [])
    assert run_sgd(SgdLab(batch=10, epochs=2)).shrinks is None
    json.loads(result.model_dump_json(by_alias=True))


def test_the_page_has_the_computed_values():
    result = run_sgd(SgdLab(batch=100, epochs=3))
    text = render_page(page(result))
    assert f"{result.loss_end:.4f}" in text
    assert text.count('class="slider"') == 2


PAGE = (Path(__file__).resolve().parents[2] / "docs/labs/index.md").read_text("utf-8")
TYPED = {
    "allpull lab sgd -n 2": [],
    "allpull lab sgd -n 2 --without broadcast": [1],
    "allpull lab sgd -n 2 --without average": [1],
    "allpull lab sgd -n 2 --share weak": [],
}
"""What the page of the labs types for real ranks, and the ranks whose replicas part."""


def test_the_page_types_the_commands_that_are_tried_here():
    assert re.findall(r"^\$ (allpull lab sgd -n (?:(?!    #).)*)$", PAGE, re.MULTILINE) == list(TYPED)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.parametrize(("command", "differ"), TYPED.items())
def test_real_ranks_stay_equal_unless_something_is_left_out(command, differ, run_cli, tmp_path):
    done = run_cli(*command.split()[1:], "--epochs", "3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = SgdResult.model_validate_json(done.stdout)
    written = (tmp_path / "lab-sgd.html").read_text("utf-8")
    assert result.differ == differ
    assert [(one.rank, one.step) for one in result.differences] == [(rank, 1) for rank in differ]
    assert (result.apart > 0) == bool(differ)
    if not differ:  # the mean of equal parts is the gradient of the whole
        lab = SgdLab(batch=100, epochs=3, ranks=2, share="weak" if "weak" in command else "strong")
        points = line.samples(lab.samples, lab.seed)
        alone = line.descend(points, batch=lab.whole_batch, epochs=3, rate=0.5, seed=0)
        assert [(one.slope, one.offset) for one in result.path] == [pytest.approx(tuple(place)) for place in alone]
        first = np.mean([rank.gradient[0] for rank in result.by_rank], axis=0)
        whole = line.gradient(points, line.order(1000, 0, 0)[: lab.whole_batch], *line.START)
        assert tuple(first) == pytest.approx(whole)
    if "broadcast" in command:  # they apply one gradient, so they stay as far apart as they began
        begin, end = ([rank.path[at].slope for rank in result.by_rank] for at in (0, -1))
        assert end[1] - end[0] == pytest.approx(begin[1] - begin[0])
        assert "were not broadcast" in written
    if "average" in command:
        assert "nobody averaged" in written


def descent_by_hand(starts, rate, updates):
    """Paths (ranks, updates + 1, 2) of ranks that average the gradients of equal parts of all samples: numpy alone."""
    rng = np.random.default_rng(11)
    x = rng.uniform(-0.5, 0.5, 4000)
    y = 2 * x + rng.uniform(-0.5, 0.5, 4000)
    best = np.linalg.lstsq(np.stack([x, np.ones_like(x)], axis=1), y, rcond=None)[0]
    parts = np.split(np.arange(4000), len(starts))
    lines = np.array(starts, dtype=float)
    path = [lines.copy()]
    for _ in range(updates):
        gradients = []
        for (slope, offset), part in zip(lines, parts, strict=True):
            residual = slope * x[part] + offset - y[part]
            gradients.append([2 * np.mean(residual * x[part]), 2 * np.mean(residual)])
        lines -= rate * np.mean(gradients, axis=0)
        path.append(lines.copy())
    return np.array(path).swapaxes(0, 1), best, np.mean((best[0] * x + best[1] - y) ** 2)


def test_the_facts_hold_for_other_samples_and_other_code():
    (path,), best, least = descent_by_hand([(0.4, 0.4)], 0.5, 150)
    assert least == pytest.approx(1 / 12, rel=0.05)
    assert abs(path[1, 1]) < 0.03  # the offset, after one update
    errors = np.abs(path[2:40, 0] - best[0])
    assert np.median(1 - errors[1:] / errors[:-1]) == pytest.approx(0.083, abs=0.004)
    assert path[-1] == pytest.approx(best, abs=1e-3)
    result = run_sgd(SgdLab(batch=1000))
    assert abs(result.path[1].offset) < 0.03
    assert result.loss_end == pytest.approx(least, rel=0.1)


def test_without_broadcast_the_mean_of_the_ranks_reaches_the_optimum_and_no_rank_does():
    path, best, _ = descent_by_hand([(0.4, 0.4), (2.0, 0.0)], 0.5, 300)
    assert path[:, -1].mean(axis=0) == pytest.approx(best, abs=0.05)
    assert path[1, -1] - path[0, -1] == pytest.approx([1.6, -0.4])
