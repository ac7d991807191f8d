"""Multi-label scores against scikit-learn's, which defines them."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from allpull.errors import BadInput  # noqa: E402
from allpull.train.metrics.multilabel import average_precision, f1, label_counts, mean_average_precision  # noqa: E402

pytestmark = pytest.mark.torch


@st.composite
def answers(draw):
    """Scores [samples, labels] with many that are equal, and truth with labels that are rare or absent."""
    samples, labels = draw(st.integers(1, 40)), draw(st.integers(2, 8))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = draw(st.sampled_from([2, 5, 10**6]))
    truth = random.random((samples, labels)) < draw(st.sampled_from([0.02, 0.3, 0.9]))
    return random.integers(0, levels, (samples, labels)) / levels, truth


@pytest.mark.slow
@settings(deadline=None)
@given(answers())
def test_f1_and_average_precision_are_those_of_scikit_learn(given_answers):
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    scores, truth = given_answers
    predicted = scores >= 0.5
    mine = f1(label_counts(torch.from_numpy(predicted), torch.from_numpy(truth)))
    assert mine.micro == pytest.approx(theirs.f1_score(truth, predicted, average="micro", zero_division=0), abs=1e-12)
    assert mine.macro == pytest.approx(theirs.f1_score(truth, predicted, average="macro", zero_division=0), abs=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of labels that no sample has, and scores them 0
        each = [theirs.average_precision_score(truth[:, label], scores[:, label]) for label in range(truth.shape[1])]
        mean = theirs.average_precision_score(truth.astype(int), scores, average="macro")
    assert average_precision(torch.from_numpy(scores), torch.from_numpy(truth)).tolist() == pytest.approx(
        each, abs=1e-12
    )
    assert mean_average_precision(torch.from_numpy(scores), torch.from_numpy(truth)) == pytest.approx(mean, abs=1e-12)


@settings(deadline=None)
@given(answers(), st.integers(1, 4))
def test_counts_of_parts_add_up_and_order_does_not_matter(given_answers, parts):
    scores, truth = map(torch.from_numpy, given_answers)
    whole = label_counts(scores >= 0.5, truth)
    assert torch.equal(sum(label_counts(scores[i::parts] >= 0.5, truth[i::parts]) for i in range(parts)), whole)
    shuffled = torch.randperm(len(scores), generator=torch.Generator().manual_seed(parts))
    assert torch.allclose(average_precision(scores[shuffled], truth[shuffled]), average_precision(scores, truth))


def test_a_worked_example():
    """Davis & Goadrich style, by hand: ranks of the true ones 1, 3 and 4 of 5: (1/1 + 2/3 + 3/4) / 3."""
    scores = torch.tensor([[0.9], [0.7], [0.6], [0.4], [0.1]])
    truth = torch.tensor([[1], [0], [1], [1], [0]])
    assert average_precision(scores, truth).item() == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


def test_a_network_that_answers_all_alike_gets_the_share_of_true_ones():
    truth = torch.tensor([[1, 0], [0, 0], [0, 1], [1, 0]])
    assert average_precision(torch.full((4, 2), 0.3), truth).tolist() == [0.5, 0.25]


def test_no_number_is_made_of_scores_that_are_none():
    scores = torch.tensor([[0.1, float("nan")], [0.2, 0.3]])
    first, second = average_precision(scores, torch.tensor([[0, 1], [1, 0]])).tolist()
    assert first == 1.0
    assert np.isnan(second)
    with pytest.raises(BadInput, match="no samples"):
        average_precision(torch.zeros(0, 2), torch.zeros(0, 2))
    with pytest.raises(BadInput, match=r"\[samples, labels\]"):
        label_counts(torch.zeros(3, 2), torch.zeros(2, 3))
