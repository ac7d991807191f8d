"""A digest is that of the bits alone: any layout gives the same, any other value another one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from allpull.observe.hooks.torch import replicas  # noqa: E402
from allpull.observe.hooks.torch.replicas import DIGITS, Replicas, checked_every, digests, is_sharded  # noqa: E402
from allpull.rundir.job_file import JobFile, WatchOptions  # noqa: E402

pytestmark = pytest.mark.torch
KINDS = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_changed_element_is_another_digest_in_every_type(kind: str) -> None:
    torch.manual_seed(0)
    tensor = (torch.randn(3, 4, 5, 6) * 40).to(getattr(torch, kind))
    other = tensor.clone()
    other[1, 2, 3, 4] = ~other[1, 2, 3, 4] if kind == "bool" else other[1, 2, 3, 4] + 1
    assert digests([tensor]) == digests([tensor.clone()])
    assert digests([tensor]) != digests([other])
    assert len(digests([tensor, other])) == 2 * DIGITS


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.permute(3, 1, 0, 2),
        lambda x: torch.stack([x, x])[1],
        lambda x: torch.stack([x, x], dim=-1)[..., 0],  # with gaps
        nn.Parameter,
    ],
)
def test_the_layout_does_not_matter(laid_out) -> None:
    tensor = torch.randn(4, 3, 2, 5)
    assert digests([tensor]) == digests([laid_out(tensor)])


def test_pieces_add_up_and_errors_of_opposite_sign_do_not_cancel_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(1000)
    whole = digests([tensor])
    monkeypatch.setattr(replicas, "PIECE", 64)
    assert digests([tensor]) == whole
    other = tensor.clone()
    bits = other.view(torch.int32)
    bits[3] += 1
    bits[7] -= 1
    assert digests([other]) != whole
    assert digests([]) == ""
    assert digests([torch.zeros(0), torch.tensor(1.0)])[:DIGITS] == "0" * DIGITS


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
