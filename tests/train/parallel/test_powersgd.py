"""What PowerSGD is given to go on from: a state of this network, or one clear error and nothing changed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from allpull.schema.trainspec import ParallelSpec  # noqa: E402
from allpull.train.parallel.powersgd import PowerSgd  # noqa: E402

pytestmark = pytest.mark.torch
LEFT_OUT, BASIS = "left_out/weight", "basis/weight"


def hook(rank=1):
    return PowerSgd(nn.Linear(8, 16), ParallelSpec(compression="powersgd", powersgd_rank=rank), one_by_one=True)


def state(value, steps=7, rank=1):
    return {"steps": torch.tensor(steps), LEFT_OUT: torch.full((128,), value), BASIS: torch.arange(8.0 * rank)}


def test_what_was_loaded_is_what_there_is():
    one = hook()
    assert {name: value.tolist() for name, value in one.state().items()} == {"steps": 0}
    one.load_state([state(1.0), state(2.0)], 1)
    assert all(torch.equal(value, state(2.0)[name]) for name, value in one.state().items())


def test_others_get_the_mean_of_what_each_left_out():
    one = hook()
    one.load_state([state(1.0), state(2.0), state(6.0)], None)
    assert one.state()[LEFT_OUT].unique().tolist() == [3.0]
    assert int(one.state()["steps"]) == 7


def test_a_basis_of_another_rank_of_approximation_begins_anew():
    one = hook(rank=2)
    one.load_state([state(1.0)], 0)
    assert {*one.state()} == {"steps", LEFT_OUT}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"steps": torch.tensor(-1)}, ValueError),
        ({"steps": torch.tensor(0.5)}, ValueError),
        ({"steps": torch.tensor([3])}, ValueError),
        ({LEFT_OUT: torch.zeros(5)}, ValueError),
        ({"steps": None}, (ValueError, AttributeError)),
    ],
)
def test_a_state_of_another_network_changes_nothing(wrong, error):
    one = hook()
    one.load_state([state(1.0)], 0)
    with pytest.raises(error):
        one.load_state([{**state(4.0, steps=9), **wrong}], 0)
    assert all(torch.equal(value, state(1.0)[name]) for name, value in one.state().items())
