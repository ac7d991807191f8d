"""What a device makes of a network is what was measured of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.errors import UnknownName
from allpull.nets import NETS, network
from allpull.nets.devices import DEVICES, LAUNCH_S, REFERENCE, device, flops_per_s, optimizer_s, step_times

ROWS = [(on.name, row) for on in DEVICES.values() for row in on.measured]
PEAK_FLOPS_PER_S = {"P100": 10.6e12, "V100": 125e12, "V100-fp32": 15.7e12, "A100": 312e12, "A100-tf32": 156e12}
"""From the data sheets, dense."""


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}-{row.net}" for name, row in ROWS])
def test_the_measured_throughput_comes_back(name, row):
    """The exact closure: layers, launches and optimizer of one step add up to the time that was published."""
    times = step_times(network(row.net), device(name), row.batch)
    assert row.batch / times.step_s == pytest.approx(row.images_per_s, rel=1e-9)
    assert row.source


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_a_reference_row(name):
    assert REFERENCE in {row.net for row in DEVICES[name].measured}


@pytest.mark.parametrize("name", PEAK_FLOPS_PER_S)
def test_rates_are_achieved_ones_and_not_peaks(name):
    share = flops_per_s(network("resnet50"), device(name)) / PEAK_FLOPS_PER_S[name]
    assert 0.14 < share < 0.66


def test_a_v100_takes_54_ms_for_64_images_of_resnet50():
    """1,200 images/s are 53.3 ms at a large batch; at 64 the launches weigh four times as much."""
    times = step_times(network("resnet50"), device("V100"), 64)
    assert times.step_s == pytest.approx(0.0544, rel=0.01)


@given(st.sampled_from(NETS.names()), st.sampled_from(sorted(DEVICES)), st.integers(1, 4096))
@settings(max_examples=40, deadline=None)
def test_backward_works_twice_as_much_as_forward(name, on, batch):
    times = step_times(network(name), device(on), batch)
    for layer in times.layers:
        assert layer.forward_s >= LAUNCH_S
        assert layer.backward_s - LAUNCH_S == pytest.approx(2 * (layer.forward_s - LAUNCH_S), abs=1e-12)


@given(st.sampled_from(NETS.names()), st.sampled_from(sorted(DEVICES)), st.integers(1, 1000))
@settings(max_examples=40, deadline=None)
def test_time_grows_with_the_batch_by_the_work_alone(name, on, batch):
    net, chosen = network(name), device(on)
    more = step_times(net, chosen, 2 * batch).step_s - step_times(net, chosen, batch).step_s
    assert more == pytest.approx(3 * batch * net.flops_forward / flops_per_s(net, chosen), rel=1e-6)


def test_borrowed_rates_are_as_far_off_as_the_documentation_says():
    """On the P100 three networks were measured, so ResNet-50's rate can be held against the others' own."""
    on = device("P100")
    rate = flops_per_s(network("resnet50"), on)
    assert rate / flops_per_s(network("inception_v3"), on) == pytest.approx(1.10, abs=0.02)
    assert flops_per_s(network("vgg16"), on) / rate == pytest.approx(2.7, abs=0.05)


def test_the_optimizer_is_bound_by_memory():
    """ResNet-50: 25.6 M parameters of 20 bytes at 900 GB/s."""
    assert optimizer_s(network("resnet50"), device("V100")) == pytest.approx(0.000568, rel=0.01)


def test_an_unknown_device_names_its_neighbour():
    with pytest.raises(UnknownName, match="did you mean 'V100'"):
        device("v100")
