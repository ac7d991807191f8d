"""The loss and the score of a network, on one rank; ``parallel/test_gather_ranks.py`` has two."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402

from allpull import marks  # noqa: E402
from allpull.data.datasets.dataset import Part  # noqa: E402
from allpull.data.loader.batches import Batch, evaluation_batches  # noqa: E402
from allpull.errors import BadInput  # noqa: E402
from allpull.schema.trainspec import ParallelSpec  # noqa: E402
from allpull.train.evaluate import EvaluationPlan, evaluate  # noqa: E402
from allpull.train.metrics.loss import summed_loss  # noqa: E402
from allpull.train.metrics.score import Score, tally_of  # noqa: E402
from allpull.train.optim.ema import Average  # noqa: E402
from allpull.train.parallel.ranks import Ranks  # noqa: E402
from allpull.train.parallel.strategy import distribute  # noqa: E402

pytestmark = pytest.mark.torch
ALONE = Ranks(rank=0, ranks=1, device=torch.device("cpu"))


class Guess(torch.nn.Module):
    """Says class k for an image whose first pixel is k."""

    def forward(self, images):
        return torch.nn.functional.one_hot(images[:, 0, 0, 0].long(), 10).float()


def as_tensors(batch):
    return torch.from_numpy(batch.images).permute(0, 3, 1, 2), torch.from_numpy(batch.labels)


LABELS = np.arange(7) % 10
IMAGES = np.zeros((7, 8, 8, 1), np.uint8)
IMAGES[:, 0, 0, 0] = [0, 1, 2, 3, 9, 9, 9]  # right four times of seven
PART = Part(images=IMAGES, labels=LABELS)
HOW = EvaluationPlan(classes=10, samples=7, prepare=as_tensors)


def samples(size):
    return lambda *, rank, ranks: evaluation_batches(PART, rank=rank, ranks=ranks, size=size)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_evaluation_counts_each_sample_once_whatever_the_batch(size):
    score = evaluate(distribute(Guess(), ParallelSpec(), ALONE), samples(size), ALONE, HOW)
    assert (score.samples, score.top1) == (7, 4 / 7)
    assert score.top5 >= score.top1
    # a right guess has the logits (1, 0 × 9) and a wrong one sees its class at 0
    assert score.loss == pytest.approx((4 * (math.log(math.e + 9) - 1) + 3 * math.log(math.e + 9)) / 7, rel=1e-6)
    assert list(score.metrics()) == ["test_loss", "test_top1", "test_top5"]


def test_samples_that_the_loader_left_out_do_not_count_and_lost_ones_are_an_error():
    odd = [
        Batch(images=IMAGES[:4], labels=LABELS[:4], samples=3, global_samples=4),
        Batch(images=IMAGES[4:], labels=LABELS[4:], samples=3, global_samples=3),
    ]
    shared = distribute(Guess(), ParallelSpec(), ALONE)
    score = evaluate(shared, lambda *, rank, ranks: iter(odd), ALONE, HOW)
    assert (score.samples, score.top1) == (6, 3 / 6)
    with pytest.raises(RuntimeError, match="evaluated 4 samples of 7"):
        evaluate(shared, lambda *, rank, ranks: iter(odd[:1]), ALONE, HOW)
    none = [Batch(images=IMAGES, labels=LABELS, samples=0, global_samples=7)]
    with pytest.raises(BadInput, match="no test sample"):
        evaluate(shared, lambda *, rank, ranks: iter(none), ALONE, HOW)


def test_the_average_is_evaluated_in_place_and_training_goes_on_as_it_was():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    images = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float()
    average = Average(model, half_life_steps=1)
    started = model(images).detach()
    with torch.no_grad():
        model[1].weight.normal_()
    own = model[1].weight.detach().clone()

    def prepare(batch):
        return images, torch.from_numpy(batch.labels)

    how = EvaluationPlan(classes=10, samples=7, prepare=prepare)
    score = evaluate(distribute(model, ParallelSpec(), ALONE), samples(7), ALONE, how, average=average)
    assert score.loss == pytest.approx(summed_loss(started, torch.from_numpy(LABELS)).item() / 7)
    assert torch.equal(model[1].weight, own)
    assert model.training


def test_evaluation_stands_in_its_phase():
    seen = []

    class Listener:
        def phase(self, name):
            seen.append(name)
            return marks._SILENCE

    before = marks.listen(Listener())
    try:
        evaluate(distribute(Guess(), ParallelSpec(), ALONE), samples(7), ALONE, HOW)
    finally:
        marks.listen(before)
    assert seen == ["evaluation"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_label_and_all_of_a_share_are_the_same_loss(smoothing):
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4), torch.randint(0, 4, (6,))
    shares = torch.nn.functional.one_hot(labels, 4).double()
    whole = summed_loss(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(summed_loss(logits, shares, label_smoothing=smoothing), whole)
    parts = [summed_loss(logits[i::3], labels[i::3], label_smoothing=smoothing) for i in range(3)]
    torch.testing.assert_close(sum(parts), whole)  # so shares of ranks add up


def test_the_loss_of_a_mixture_is_the_mixture_of_the_losses():
    """Zhang et al. 2018, section 2: with cross-entropy the two are one."""
    torch.manual_seed(0)
    logits, first, second = torch.randn(5, 3), torch.randint(0, 3, (5,)), torch.randint(0, 3, (5,))
    one_hot = [torch.nn.functional.one_hot(labels, 3).float() for labels in (first, second)]
    mixed = summed_loss(logits, 0.3 * one_hot[0] + 0.7 * one_hot[1])
    torch.testing.assert_close(mixed, 0.3 * summed_loss(logits, first) + 0.7 * summed_loss(logits, second))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_binary_cross_entropy_by_its_definition(smoothing):
    """−mean over labels of t · log p + (1 − t) · log(1 − p), with targets pulled towards 1/2 as Keras does."""
    torch.manual_seed(0)
    logits, truth = torch.randn(6, 5).double(), torch.randint(0, 2, (6, 5))
    wanted = truth * (1 - smoothing) + 0.5 * smoothing
    p = torch.sigmoid(logits)
    expected = -(wanted * p.log() + (1 - wanted) * (1 - p).log()).mean(1).sum()
    found = summed_loss(logits, truth, multi_label=True, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="not both"):
        summed_loss(logits, truth[:, :1], multi_label=True)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize(
    ("logits", "loss"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
)
def test_losses_are_not_computed_in_sixteen_bits(multi_label, logits, loss):
    answers = torch.full((300, 4), 0.25).to(logits)
    targets = torch.ones(300, 4) if multi_label else torch.zeros(300, dtype=torch.int64)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=logits == torch.bfloat16):
        found = summed_loss(answers, targets, multi_label=multi_label)
    assert found.dtype == loss
    one = math.log(1 + math.exp(-0.25)) if multi_label else math.log(4)
    assert found.item() == pytest.approx(300 * one, rel=1e-6)


def test_scores_of_several_labels_are_those_of_scikit_learn():
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    random = np.random.default_rng(0)
    truth = random.random((57, 6)) < 0.3
    logits = np.round(random.normal(size=(57, 6)) + truth, 1)
    tally = tally_of(6, multi_label=True, device=torch.device("cpu"))
    for part in np.array_split(np.arange(57), 5):
        tally.add(torch.from_numpy(logits[part]), torch.from_numpy(truth[part].astype(np.float32)))
    score = tally.score(ALONE)
    p = 1 / (1 + np.exp(-logits))
    assert score.samples == 57
    assert score.loss == pytest.approx(theirs.log_loss(truth.ravel(), p.ravel()))
    assert score.f1_micro == pytest.approx(theirs.f1_score(truth, p > 0.5, average="micro"))
    assert score.f1_macro == pytest.approx(theirs.f1_score(truth, p > 0.5, average="macro"))
    assert score.map == pytest.approx(theirs.average_precision_score(truth, p, average="macro"))
    assert list(score.metrics()) == ["test_loss", "test_f1_micro", "test_f1_macro", "test_map"]


def test_far_answers_keep_their_order():
    """As probabilities in single precision both were 1; average precision would then be 1/2."""
    tally = tally_of(1, multi_label=True, device=torch.device("cpu"))
    tally.add(torch.tensor([[40.0], [50.0]]), torch.tensor([[0.0], [1.0]]))
    assert tally.score(ALONE).map == 1.0


def test_a_network_that_says_no_number_has_no_precision():
    tally = tally_of(2, multi_label=True, device=torch.device("cpu"))
    tally.add(torch.tensor([[float("nan"), 1.0]]), torch.ones(1, 2))
    score = tally.score(ALONE)
    assert math.isnan(score.loss)
    assert math.isnan(score.map)


def test_a_score_in_words():
    score = Score(loss=0.25, samples=57, f1_micro=0.5, f1_macro=0.25, map=0.75)
    assert score.summary() == "test micro F1 0.5000, macro F1 0.2500, mAP 0.7500, loss 0.2500 (57 samples)"
