"""What a rank makes of a cluster: times that add up to those given, and parameters in true proportion."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import BadInput, UnknownName
from allpull.nets import NETS, network
from allpull.nets.devices import device, step_times
from allpull.rehearse.ranks.schedule import plan
from allpull.rehearse.ranks.timeline import COARSE_S, GRAIN_S, Timeline


def cluster(shrink: float = 1.0, **accelerator: object) -> dict:
    return {"shrink": shrink, "accelerator": {"model": "resnet50", "batch": 64, **accelerator}}


class Clock:
    """A clock that only sleeping moves, each time by ``late_s`` too much."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.late_s = late_s
        self.sleeps = 0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.sleeps += 1
        self.now_s += seconds + self.late_s


@given(
    st.sampled_from(NETS.names()),
    st.floats(1e-3, 10),
    st.one_of(st.none(), st.floats(1e-3, 10)),
    st.floats(0, 1),
    st.floats(0, 1),
)
@settings(max_examples=30, deadline=None)
def test_layers_add_up_to_the_times_given(model, forward_s, backward_s, input_s, optimizer_s):
    given_times = {"forward_s": forward_s, "backward_s": backward_s, "input_s": input_s, "optimizer_s": optimizer_s}
    made = plan(cluster(**{"model": model, **given_times}))
    backward_s = 2 * forward_s if backward_s is None else backward_s
    assert made.forward_s == pytest.approx(forward_s)
    assert made.backward_s == pytest.approx(backward_s)
    assert made.step_s == pytest.approx(input_s + forward_s + backward_s + optimizer_s)


def test_a_device_gives_the_times_of_its_table():
    made = plan(cluster(device="V100"))
    times = step_times(network("resnet50"), device("V100"), 64)
    assert [(layer.forward_s, layer.backward_s) for layer in made.layers] == [
        (layer.forward_s, layer.backward_s) for layer in times.layers
    ]
    assert made.optimizer_s == times.optimizer_s


def test_measured_layers_come_before_totals_and_totals_before_the_device():
    layers = [{"forward_s": 0.001, "backward_s": 0.003}] * 16
    made = plan(cluster(model="vgg16", layers=layers, forward_s=5.0, device="V100"))
    assert (made.forward_s, made.backward_s) == (pytest.approx(0.016), pytest.approx(0.048))
    assert plan(cluster(forward_s=0.5, device="V100")).forward_s == pytest.approx(0.5)


@given(st.sampled_from(NETS.names()), st.floats(1, 50))
@settings(max_examples=30, deadline=None)
def test_shrinking_keeps_order_and_proportion(model, shrink):
    net = network(model)
    made = [one for layer in plan(cluster(shrink, model=model, forward_s=1.0)).layers for one in layer.parameters]
    real = [(f"{layer.name}.{one.name}", one.elements) for layer in net.layers for one in layer.parameters]
    assert [one.name for one in made] == [name for name, _ in real]
    for one, (_, elements) in zip(made, real, strict=True):
        assert one.elements >= 1
        assert abs(one.elements - elements / shrink) <= 0.5 or one.elements == 1
    assert sum(one.elements for one in made) == pytest.approx(net.parameters / shrink, rel=0.01)


@pytest.mark.parametrize(
    ("accelerator", "error", "said"),
    [
        ({"model": "resnet51"}, UnknownName, "did you mean 'resnet50'"),
        ({"device": "V1000"}, UnknownName, "no device 'V1000'"),
        ({}, BadInput, "no times"),
        ({"layers": [{"forward_s": 1.0, "backward_s": 1.0}]}, BadInput, "has 1 layers, resnet50 has 107"),
        ({"forward_s": -1.0}, BadInput, "forward_s is -1.0"),
        ({"forward_s": 1.0, "batch": 0}, BadInput, "batch is 0"),
    ],
)
def test_a_cluster_that_cannot_be_trained_says_why(accelerator, error, said):
    with pytest.raises(error, match=said):
        plan(cluster(**accelerator))


def test_a_cluster_without_an_accelerator_says_so():
    with pytest.raises(BadInput, match="no accelerator"):
        plan({"shrink": 1.0, "accelerator": None, "faults": []})


@given(st.lists(st.floats(0, 0.02), max_size=200), st.floats(0, 150e-6), st.sampled_from([GRAIN_S, COARSE_S]))
def test_late_sleeps_do_not_add_up(work, late_s, grain_s):
    """However many sleeps there were, the end is late by at most one of them."""
    clock = Clock(late_s)
    timeline = Timeline(clock=clock, sleep=clock.sleep)
    due_s = 100.0
    for seconds in work:
        timeline.work(seconds, grain_s)
        due_s += seconds
        assert clock.now_s >= due_s - grain_s - 1e-9
    timeline.settle()
    assert -1e-9 <= clock.now_s - 100.0 - sum(work) <= late_s + 1e-9


def test_short_work_is_slept_together():
    clock = Clock()
    timeline = Timeline(clock=clock, sleep=clock.sleep)
    for _ in range(100):
        timeline.work(GRAIN_S / 10)
    timeline.settle()
    assert clock.sleeps <= 11
    assert clock.now_s == pytest.approx(100.0 + 10 * GRAIN_S)


def test_waiting_for_others_is_not_made_up_for():
    clock = Clock()
    timeline = Timeline(clock=clock, sleep=clock.sleep)
    timeline.spend(0.01)
    clock.now_s += 1.0  # in a collective
    timeline.restart()
    timeline.spend(0.01)
    assert clock.now_s == pytest.approx(101.02)
