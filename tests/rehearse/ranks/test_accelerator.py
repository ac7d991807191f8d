"""One virtual accelerator by itself: every wait of a training, to the microsecond, on a clock that only waits move."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from allpull import marks  # noqa: E402  after the check that torch is here
from allpull.errors import UnknownName  # noqa: E402
from allpull.nets import network  # noqa: E402
from allpull.rehearse.ranks.__main__ import main  # noqa: E402
from allpull.rehearse.ranks.accelerator import MAX_SHARED, TINY_S, Accelerator, group_layers  # noqa: E402
from allpull.rehearse.ranks.loop import Place, Training  # noqa: E402
from allpull.rehearse.ranks.schedule import PlannedLayer, PlannedParameter, plan  # noqa: E402
from allpull.rehearse.ranks.timeline import GRAIN_S, Timeline  # noqa: E402

STEP = {"model": "resnet50", "batch": 64, "forward_s": 0.03, "backward_s": 0.06, "input_s": 0.004, "optimizer_s": 0.001}
STEP_S = 0.095


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Listener:
    """Keeps what a training says, with the time of ``clock``."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.steps: list[tuple[float, int | None]] = []
        self.epochs: list[tuple[int, int | None]] = []
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def phase(self, name):
        began_s = self.clock()
        yield
        self.seconds.setdefault(name, []).append(self.clock() - began_s)

    def step(self, samples):
        self.steps.append((self.clock(), samples))

    def epoch(self, number, step):
        self.epochs.append((number, step))

    def metric(self, name, value, step):
        assert (name, value, step) == ("steps_per_epoch", 4, None)


def trained(steps: int, *faults: dict, rank: int = 0, **accelerator: object) -> Listener:
    """What rank ``rank``, alone with its clock, says of a training."""
    cluster = {"shrink": 1000.0, "accelerator": {**STEP, "epoch_steps": 4, **accelerator}, "faults": list(faults)}
    clock = Clock()
    listener = Listener(clock)
    training = Training(plan(cluster), Place(rank=rank, ranks=1), Timeline(clock=clock, sleep=clock.sleep))
    before = marks.listen(listener)
    try:
        training.run(steps)
    finally:
        marks.listen(before)
    return listener


def test_all_waits_of_a_step_add_up_to_its_time():
    listener = trained(10)
    assert listener.clock() == pytest.approx(10 * STEP_S)
    assert listener.seconds["input"] == pytest.approx([0.004] * 10)
    assert listener.seconds["forward"] == pytest.approx([0.03] * 10)
    assert listener.seconds["backward"] == pytest.approx([0.06] * 10)
    assert listener.seconds["optimizer"] == pytest.approx([0.001] * 10)


def test_a_rank_says_what_the_reference_trainer_says():
    listener = trained(10, evaluation_s=0.5, checkpoint_s=0.2, evaluate_every=2)
    assert [samples for _, samples in listener.steps] == [64] * 10
    assert listener.epochs == [(0, 0), (1, 4), (2, 8)]
    assert listener.seconds["evaluation"] == pytest.approx([0.5])
    assert listener.seconds["checkpoint"] == pytest.approx([0.2, 0.2])
    assert listener.clock() == pytest.approx(10 * STEP_S + 0.5 + 2 * 0.2)


@pytest.mark.parametrize("where", ["forward", "backward", "input"])
@pytest.mark.parametrize("planned_s", [0.05, 0.0])
def test_a_delay_falls_where_it_was_planted_even_where_nothing_else_takes_time(where, planned_s):
    delay = {"kind": "jitter", "distribution": "uniform", "std_s": 0.01, "where": where, "from_step": 1}
    times = {"forward_s": planned_s, "backward_s": planned_s, "input_s": planned_s}
    healthy, faulty = trained(2, **times).seconds, trained(2, delay, **times).seconds
    for phase in ("input", "forward", "backward"):
        if phase == where:
            assert faulty[phase][1] > healthy[phase][1] + 1e-4
        else:
            assert faulty[phase] == pytest.approx(healthy[phase])


def test_a_slow_rank_is_late_by_its_delay():
    slow = {"kind": "slow-rank", "rank": 0, "where": "backward", "delay_s": 0.04, "from_step": 2}
    assert trained(4, slow).seconds["backward"] == pytest.approx([0.06, 0.06, 0.1, 0.1])


def test_jitter_never_makes_time_run_backwards():
    wild = {"kind": "jitter", "distribution": "normal", "std_s": 10.0, "where": "backward"}
    seconds = trained(40, wild).seconds["backward"]
    assert min(seconds) == pytest.approx(0.0)
    assert max(seconds) > 1.0


def test_more_samples_take_more_compute_and_nothing_else():
    listener = trained(3, {"kind": "uneven-shards", "rank": 0, "factor": 1.5})
    assert [samples for _, samples in listener.steps] == [96] * 3
    assert listener.clock() == pytest.approx(3 * (0.004 + 1.5 * 0.09 + 0.001))


def test_gradients_come_in_reverse_order_at_the_times_of_their_layers():
    """The last layer's are ready first, each when the backward passes up to its layer are done, or a grain before.

    This network's normalisations take no time, and are the ones that share a function.
    """
    net = network("resnet50")
    made = plan({"shrink": 20.0, "accelerator": STEP})
    clock = Clock()
    timeline = Timeline(clock=clock, sleep=clock.sleep)
    model = Accelerator(made, timeline)
    ready: list[tuple[str, float]] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append((name, clock())))
    loss = model(torch.zeros(()))
    began_s = clock()
    torch.autograd.backward(loss)
    order = [f"{layer.name}.{one.name}" for layer in reversed(net.layers) for one in layer.parameters]
    assert [name for name, _ in ready] == order
    done_s = 0.0
    due_s = {}
    for layer, planned in zip(reversed(net.layers), reversed(made.layers), strict=True):
        done_s += planned.backward_s
        due_s[layer.name] = done_s
    for name, at_s in ready:
        assert -GRAIN_S <= at_s - began_s - due_s[name.rpartition(".")[0]] <= 1e-9
    assert ready[-1][1] - began_s == pytest.approx(0.06)


@given(st.lists(st.tuples(st.sampled_from([0.0, TINY_S / 2, TINY_S, 1.0]), st.integers(1, 4)), min_size=1))
def test_a_function_holds_few_gradients_and_one_layer_that_takes_time(layers):
    """So the order within it is kept, and no gradient is later than its own layer by more than the tiny ones take."""
    planned = [
        PlannedLayer(
            parameters=tuple(PlannedParameter(name=f"{place}.{one}", elements=1) for one in range(count)),
            forward_s=0.0,
            backward_s=backward_s,
        )
        for place, (backward_s, count) in enumerate(layers)
    ]
    groups = group_layers(planned)
    assert [layer for group in groups for layer in group] == planned
    for group in groups:
        assert len(group) == 1 or sum(len(layer.parameters) for layer in group) <= MAX_SHARED
        assert all(layer.backward_s < TINY_S for layer in group[:-1])


def test_parameters_have_the_names_and_proportions_of_the_network():
    model = Accelerator(plan({"shrink": 20.0, "accelerator": STEP}), Timeline())
    real = {
        f"{layer.name}.{one.name}": one.elements for layer in network("resnet50").layers for one in layer.parameters
    }
    made = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert list(made) == list(real)
    assert sum(made.values()) == pytest.approx(25_557_032 / 20, rel=0.001)


def test_real_waits_are_never_shorter_than_planned():
    """Longer they may be, on a busy machine; how much is measured by benchmarks/undisturbed_ranks.py."""
    began_s = time.monotonic()
    training = Training(plan({"accelerator": {**STEP, "model": "resnet18"}}), Place(rank=0, ranks=1), Timeline())
    training.run(5)
    assert time.monotonic() - began_s >= 5 * STEP_S


def test_a_cluster_that_cannot_be_trained_ends_the_rank_with_its_reason(tmp_path, capfd):
    """The observer records the cause of the exit; the code is that of bad input."""
    job = tmp_path / "job.json"
    cluster = {"accelerator": {"model": "resnet51", "batch": 64}}
    job.write_text(json.dumps({"directory": str(tmp_path), "options": {"cluster": cluster, "steps": 1}}))
    with pytest.raises(SystemExit) as ended:
        main(str(job))
    assert ended.value.code == 2
    assert isinstance(ended.value.__cause__, UnknownName)
    assert "no network 'resnet51'; did you mean 'resnet50'?" in capfd.readouterr().err
