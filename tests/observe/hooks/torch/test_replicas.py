"""Replicas are digested at the steps that were asked for, with the names of their tensors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from allpull.observe.hooks.torch.replicas import Replicas, checked_every, is_sharded  # noqa: E402
from allpull.rundir.job_file import JobFile, WatchOptions  # noqa: E402

pytestmark = pytest.mark.torch


def test_what_a_rank_has_only_a_part_of_is_no_replica() -> None:
    assert not is_sharded(nn.Parameter(torch.zeros(2)))
    assert is_sharded(nn.UninitializedParameter())
    assert is_sharded(torch.zeros(2, device="meta"))
    assert is_sharded(torch.eye(2).to_sparse())
    part = torch.zeros(2)
    part.ds_tensor = part
    assert is_sharded(part)


def test_events_name_the_tensors_once_and_the_last_state_counts() -> None:
    """Of two networks each has its number; frozen parameters are replicas too."""
    generator, critic = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))
    generator.requires_grad_(False)
    events = []
    recorder = SimpleNamespace(step_number=5, journal=SimpleNamespace(event=lambda event, _: events.append(event)))
    inference = SimpleNamespace(session=None, failed=set(), recorder=recorder)
    part = Replicas(inference, SimpleNamespace(outermost=lambda: [generator, critic]), every=2)  # type: ignore[arg-type]
    for step in range(6):
        part.at_step(step)
    part.finish()
    assert [(event["kind"], event["step"]) for event in events] == [
        *[("replica_tensors", 2), ("replica", 2), ("replica", 4), ("replica", 5)]
    ]
    assert events[0]["parameters"][:2] == ["network 0: weight", "network 0: bias"]
    assert events[0]["buffers"][0] == "network 1: 1.running_mean"
    assert events[1]["parameters"] == events[3]["parameters"]
    recorder.step_number = 6
    part.finish()  # step 6 was digested when it began
    assert len(events) == 4


def test_our_trainer_and_any_command_have_options_of_their_own() -> None:
    spec = {"train": {"check_replicas": 7}, "watch": {"check_replicas": 0}}
    assert checked_every(JobFile(directory="d", spec=spec)) == 7
    assert checked_every(JobFile(directory="d", spec=spec, command=("x",))) == 0
    watched = JobFile(directory="d", spec=spec, command=("x",), watch=WatchOptions(check_replicas=3))
    assert checked_every(watched) == 3
    assert checked_every(JobFile(directory="d")) == 0
