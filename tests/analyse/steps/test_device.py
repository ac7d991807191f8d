"""A device whose host runs ahead: what it lived through closes, whatever the steps of the host look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.steps.grid import arrange
from allpull.analyse.steps.phases import Phases
from allpull.schema.events import DeviceStep

MakeAny = Callable[..., Any]
MS = 10**6
START_NS = 10**12
STEPS = 20


@pytest.fixture
def ahead(make_records: MakeAny, make_log: MakeAny, make_data: MakeAny) -> Callable[..., Phases]:
    """``ahead(**times)``: the phases of a rank that looks at its loss every tenth step, and issues the others in 5 ms.

    Its device takes 100 ms a step; ``times`` are the device's, in ms.
    """

    def make(**times: int) -> Phases:
        walls = [[955] if step % 10 == 9 else [5] for step in range(STEPS)]
        host = {"input": 2, "copy": 1, "forward": 0.5, "backward": 0.5, "optimizer": 0.5}
        records = make_records(walls, **{name: [[ms]] * STEPS for name, ms in host.items()})
        steps = [
            DeviceStep.model_validate(
                {
                    "kind": "device_step",
                    "step": step,
                    "begin_ns": START_NS + 100 * step * MS,
                    "end_ns": START_NS + 100 * (step + 1) * MS,
                    **{f"{name}_ns": ms * MS for name, ms in times.items()},
                    "t_ns": 0,
                }
            )
            for step in range(STEPS)
        ]
        run = make_data(records, 1, events={0: make_log(0, device_steps=tuple(steps))})
        whole = AlignedRun(run)
        numbers = np.arange(STEPS)
        return whole.phases(arrange(whole.steps, numbers, 1), numbers)

    return make


def means_ms(phases: Phases) -> dict[str, float]:
    found = {name: round(1000 * mean, 6) for name, mean in phases.means_s().items() if mean is not None}
    return {name: mean for name, mean in found.items() if mean}


def test_steps_are_as_long_as_the_device_takes_for_them(ahead: Callable[..., Phases]) -> None:
    """The host's own steps of 5 and 955 ms would hold 100 ms of work each, or nothing for 855."""
    device = {"forward": 30, "backward": 60, "optimizer": 8}
    phases = ahead(**device, input=0, copy=2, busy=98)
    assert means_ms(phases) == {**device, "copy": 2}
    assert phases.closure_error == pytest.approx(0, abs=1e-12)
    assert phases.seconds["forward"] == pytest.approx(np.full((STEPS, 1), 0.03))


def test_a_device_whose_work_is_not_known_keeps_its_spans(ahead: Callable[..., Phases]) -> None:
    """Launch-bound steps tell no ``busy``: their phases close all the same, and nothing is called ``host``."""
    device = {"forward": 30, "backward": 40, "optimizer": 10, "input": 15}
    phases = ahead(**device, copy=0)
    assert means_ms(phases) == {**device, "other": 5}
    assert phases.closure_error == pytest.approx(0, abs=1e-12)
    assert phases.seconds["host"] is None


def test_a_collective_that_the_stream_waited_in_is_none_of_its_phases(ahead: Callable[..., Phases]) -> None:
    phases = ahead(forward=30, backward=40, optimizer=10, input=0, copy=0, collective=20, busy=80)
    assert means_ms(phases) == {"forward": 30, "backward": 40, "optimizer": 10, "other": 20}
    assert phases.closure_error == pytest.approx(0, abs=1e-12)
