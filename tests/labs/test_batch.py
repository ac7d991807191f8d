"""The lab of the global batch: what it refuses, its arithmetic, and real trainings against a network in plain numpy."""

import csv
import importlib.resources
import json

import numpy as np
import pytest

from allpull.data.datasets.digits import read
from allpull.errors import AllpullError, BadInput
from allpull.kernel import usable_cpus
from allpull.labs import batch as lab_batch
from allpull.labs.batch import BatchLab, over_seeds, run_batch
from allpull.labs.batch_page import fastest, page
from allpull.report.page import render_page


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ranks": 10_000}, "CPU"),
        ({"ranks": 0}, "CPU"),
        ({"ranks": 1, "batches": ()}, "--batches"),
        ({"ranks": 1, "batches": (32, 32)}, "once"),
        ({"ranks": 1, "batches": (2000,)}, "1,437"),
        ({"ranks": 2, "batches": (33,)}, "shared equally"),
        ({"ranks": 1, "target": 95.0}, "--target"),
        ({"ranks": 1, "target": float("nan")}, "--target"),
        ({"ranks": 1, "max_epochs": 0}, "--epochs"),
        ({"ranks": 1, "seeds": 0}, "--seeds"),
        ({"ranks": 1, "seeds": 1000}, "trainings"),
        ({"ranks": 1, "rate": -1.0}, "--rate"),
        ({"ranks": 1, "warmup_epochs": 41.0}, "--warmup"),
    ],
)
def test_what_cannot_be_done_is_refused(fields, message, monkeypatch):
    monkeypatch.setattr(lab_batch, "usable_cpus", lambda: 2)
    with pytest.raises(BadInput, match=message):
        run_batch(BatchLab(**fields))


def test_a_training_that_never_arrives_is_above_all_others():
    endless = float("inf")
    assert over_seeds([3.0, endless, 2.0]).model_dump() == {"median": 3.0, "low": 2.0, "high": None}
    assert over_seeds([endless, endless, 2.0]).model_dump() == {"median": None, "low": 2.0, "high": None}
    assert over_seeds([endless]).model_dump() == {"median": None, "low": None, "high": None}


def test_points_that_never_reach_the_target_stay(batch_result):
    point = {(one.ranks, one.rule, one.global_batch): one for one in batch_result.points}
    assert len(point) == 6 * 3 + 6  # warm-up on one rank too
    late = point[2, "scaled", 1024]
    assert (late.reached, late.epochs.median, late.spent_epochs) == (0, None, 40.0)
    once = point[2, "warmup", 1024]
    assert (once.reached, once.epochs.median, once.epochs.low) == (1, None, 30.5)
    text = render_page(page(batch_result))
    assert "0 of 3" in text
    assert "not reached (best 30.5)" in text


def test_the_fit_leaves_out_a_batch_with_a_training_that_failed(batch_result):
    assert (batch_result.fit.smallest_batch, batch_result.fit.largest_batch) == (32, 512)
    worst = max(
        abs(np.log(batch_result.fit.first_epochs * (1 + one / batch_result.fit.critical_batch) / epochs))
        for one, epochs in ((32, 6.5), (64, 8.0), (128, 9.5), (256, 12.5), (512, 18.5))
    )
    assert worst < 0.06


def test_the_forecast_is_measured_epochs_at_the_speed_of_one_rank_times_the_ranks(batch_result):
    assert [one.ranks for one in batch_result.forecast] == [4, 8, 16]  # 32 ranks: too few trainings arrived
    four = batch_result.forecast[0]
    assert four.seconds == pytest.approx(9.5 * 1437 / (4 * 8e3))
    assert four.seconds_if_epochs_stayed == pytest.approx(6.5 * 1437 / (4 * 8e3))


def test_the_fastest_batch_is_that_of_the_least_time(batch_result):
    assert fastest(batch_result).global_batch == 256  # 12.5 epochs at 96,000 samples/s, against 18.5 at 120,000
    assert "A global batch of 256 is the fastest" in page(batch_result).subject


def test_published_epochs_are_those_of_the_table(batch_result):
    table = importlib.resources.files("allpull.published").joinpath("epochs_to_accuracy.csv").read_text("utf-8-sig")
    rows = [row for row in csv.DictReader(table.splitlines()) if "training_4.0.0" in row["source"]]
    assert batch_result.published.edition == "4.0.0"
    assert {(one.global_batch, round(one.mean, 1)) for one in batch_result.published.points} == {
        (int(row["global_batch"]), round(float(row["mean_epochs"]), 1)) for row in rows
    }


def test_where_nothing_arrives_there_is_a_page_and_no_forecast(batch_result):
    lost = [one.model_copy(update={"reached": False}) for one in batch_result.trainings]
    result = lab_batch._result(BatchLab(ranks=2), lost, 60.0)
    assert (result.fit, result.forecast, fastest(result)) == (None, [], None)
    assert page(result).subject == "No global batch reaches 95 % within 40 epochs"
    assert "0 of 3" in render_page(page(result))
    json.loads(result.model_dump_json(by_alias=True))


@pytest.mark.torch
def test_rates_are_fixed_scaled_or_warmed_up():
    program = pytest.importorskip("allpull.labs.programs.batch_ddp")
    plan = {"rate": 0.1, "base_batch": 32, "warmup_epochs": 5}
    rates = {
        rule: [program.learning_rate(plan, {"rule": rule, "batch": 320}, epochs) for epochs in (0, 2.5, 5, 9)]
        for rule in ("fixed", "scaled", "warmup")
    }
    assert rates["fixed"] == [0.1] * 4
    assert rates["scaled"] == pytest.approx([1.0] * 4)
    assert rates["warmup"] == pytest.approx([0.1, 0.55, 1.0, 1.0])


def trained_in_numpy(batch, rule, epochs):
    """The accuracies of the same training by one process, its gradients written out; torch gives start and order."""
    torch = pytest.importorskip("torch")
    from allpull.labs.programs.batch_ddp import network  # noqa: PLC0415  needs torch

    digits = read("")
    x, x_test = (part.images.reshape(-1, 64) / 16.0 - 0.3 for part in (digits.train, digits.test))
    torch.manual_seed(0)
    weights = [one.detach().double().numpy().copy() for one in network().parameters()]
    momenta = [np.zeros_like(one) for one in weights]
    shuffle = torch.Generator().manual_seed(0)
    order = torch.cat([torch.randperm(len(x), generator=shuffle) for _ in range(epochs + 2)]).numpy()

    def layers(values):
        outputs = [values]
        for at in (0, 2, 4):
            values = values @ weights[at].T + weights[at + 1]
            outputs.append(values := np.maximum(values, 0) if at < 4 else values)
        return outputs

    step, accuracies = 0, []
    while step * batch < epochs * len(x):
        chosen = order[step * batch : (step + 1) * batch]
        step += 1
        scaled = 0.03 * batch / 128  # the smallest batch of the lab
        share = min(1.0, step * batch / len(x) / 5)
        rate = {"fixed": 0.03, "scaled": scaled, "warmup": 0.03 + (scaled - 0.03) * share}[rule]
        outputs = layers(x[chosen])
        odds = np.exp(outputs[3] - outputs[3].max(axis=1, keepdims=True))
        back = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[digits.train.labels[chosen]]) / batch
        gradients = [None] * 6
        for layer in (2, 1, 0):
            gradients[2 * layer], gradients[2 * layer + 1] = back.T @ outputs[layer], back.sum(axis=0)
            back = (back @ weights[2 * layer]) * (outputs[layer] > 0)
        for at, gradient in enumerate(gradients):
            momenta[at] = 0.9 * momenta[at] + gradient
            weights[at] -= rate * momenta[at]
        if step % max(1, round(len(x) / batch / 2)) == 0:
            accuracies.append((step * batch / len(x), (layers(x_test)[3].argmax(axis=1) == digits.test.labels).mean()))
    return accuracies


@pytest.fixture(scope="module")
def short():
    ranks = min(2, usable_cpus())
    lines = []
    result = run_batch(BatchLab(batches=(128, 256), ranks=ranks, target=0.9, max_epochs=8, seeds=1), lines.append)
    return result, lines


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_real_trainings_are_those_of_one_process_in_numpy(short):
    result, lines = short
    assert len(lines) == len(result.trainings)
    for one in result.trainings:
        alone = dict(trained_in_numpy(one.global_batch, one.rule, 8))
        assert [alone[at.epochs] for at in one.curve] == [pytest.approx(at.accuracy, abs=0.012) for at in one.curve]
        assert one.reached == (one.curve[-1].accuracy >= 0.9)
        assert all(at.accuracy < 0.9 for at in one.curve[:-1])


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_epochs_belong_to_the_batch_and_not_to_the_ranks(short):
    epochs = {}
    for one in short[0].trainings:
        if one.rule == "warmup":
            epochs.setdefault(one.global_batch, []).append(one.epochs)
    assert all(max(each) - min(each) <= 0.6 for each in epochs.values())  # one evaluation, where sums round differently


def test_a_rank_that_fails_is_one_sentence(monkeypatch):
    def broken(*_, **__):
        raise AllpullError("rank 1 of this lab failed: no memory")

    monkeypatch.setattr(lab_batch, "run_here", broken)
    with pytest.raises(AllpullError, match="rank 1"):
        run_batch(BatchLab(ranks=1, batches=(32,)))
