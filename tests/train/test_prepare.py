"""From batches to tensors: exact, channels last, mixed as published, and never from a slot that is being written."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from functools import partialmethod
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from allpull.data.loader.batches import Batch  # noqa: E402
from allpull.data.loader.feed import HELD, Facts  # noqa: E402
from allpull.data.loader.open_feed import open_feed  # noqa: E402
from allpull.data.loader.pool import Ring, slots  # noqa: E402
from allpull.schema.trainspec import DataSpec  # noqa: E402
from allpull.train.prepare import DeviceCopy, Prepare, mixup_weight  # noqa: E402

CPU = torch.device("cpu")
SIZE = 6


def facts_of(channels=3, classes=5, mean=(10.0, 20.0, 30.0), std=(2.0, 4.0, 8.0), multi_label=False) -> Facts:
    pixels = SIZE, SIZE
    return Facts(
        data="made",
        channels=channels,
        classes=classes,
        multi_label=multi_label,
        pixels=pixels,
        test_pixels=pixels,
        mean=mean,
        std=std,
        samples=8,
        test_samples=8,
    )


def batch_of(count=8, channels=3, dtype=np.uint8, classes=5, multi_label=False) -> Batch:
    chance = np.random.default_rng(count)
    high = 255 if dtype == np.uint8 else 60_000
    images = (chance.random((count, SIZE, SIZE, channels)) * high).astype(dtype)
    shape = (count, classes) if multi_label else count
    labels = chance.integers(0, 2 if multi_label else classes, shape)
    return Batch(images=images, labels=labels, samples=count, global_samples=count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_are_to_the_bit_what_they_always_were(dtype):
    """Values and strides: another layout could have another convolution chosen, and another rounding."""
    feed = open_feed(DataSpec(shift_pixels=1), rank=0, ranks=1, global_batch=64, seed=0, epochs=1)
    prepare = Prepare(feed.facts, device=CPU, dtype=dtype)
    for step, batch in enumerate(feed.training(0)):
        before = torch.from_numpy(batch.images).permute(0, 3, 1, 2).to(dtype)
        before = (before - feed.facts.mean) / feed.facts.std
        images, labels = prepare(batch, step=step)
        assert torch.equal(images, before)
        assert (images.dtype, images.stride()) == (dtype, before.stride())
        assert torch.equal(labels, torch.from_numpy(batch.labels))
    assert prepare.phase == "input"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("channels", [1, 3, 12])
def test_each_channel_is_normalised_by_its_own_numbers(dtype, channels):
    mean, std = tuple(np.linspace(1, 9, channels).tolist()), tuple(np.linspace(3, 4, channels).tolist())
    batch = batch_of(channels=channels, dtype=dtype)
    stored = batch.images.copy()
    images, _ = Prepare(facts_of(channels, mean=mean, std=std), device=CPU, dtype=torch.float64)(batch)
    wanted = ((stored.astype(np.float64) - mean) / std).transpose(0, 3, 1, 2)
    assert np.allclose(images.numpy(), wanted, rtol=1e-15, atol=1e-15)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(batch.images, stored)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(dtype):
    """In half precision a sensor's 60,000 would be infinite, or off by 128, before its mean is taken off."""
    facts, batch = facts_of(mean=(30_000.0,) * 3, std=(20_000.0,) * 3), batch_of(dtype=np.uint16)
    images, _ = Prepare(facts, device=CPU, dtype=dtype, mixup=0.5)(batch, step=3)
    exact, _ = Prepare(facts, device=CPU, dtype=torch.float32, mixup=0.5)(batch, step=3)
    assert torch.equal(images, exact.to(dtype))
    assert images.isfinite().all()


def test_tensors_outlive_the_slot():
    batch = batch_of(dtype=np.float32)
    images, labels = Prepare(facts_of(), device=CPU, dtype=torch.float32)(batch)
    kept = images.clone()
    batch.images[:] = 0
    assert torch.equal(images, kept)
    assert labels.dtype == torch.int64


def test_mixing_is_of_neighbours_by_one_share_for_all():
    """x̃ = λ·x + (1 − λ)·x' and likewise for targets (Zhang et al. 2018, eq. 1 and 2)."""
    batch = batch_of()
    plain, classes = Prepare(facts_of(), device=CPU, dtype=torch.float64)(batch)
    images, targets = Prepare(facts_of(), device=CPU, dtype=torch.float64, mixup=0.4, seed=9)(batch, step=5)
    share = mixup_weight(0.4, 9, 5)
    onehot = torch.nn.functional.one_hot(classes, 5).double()
    for values, found in ((plain, images), (onehot, targets)):
        for own in range(8):
            assert torch.allclose(found[own], share * values[own] + (1 - share) * values[own - 1], atol=1e-12)
    assert torch.allclose(targets.sum(1), torch.ones(8, dtype=torch.float64))
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_several_labels_are_shares_of_zero_and_one_and_mix():
    facts, batch = facts_of(multi_label=True), batch_of(multi_label=True)
    _, plain = Prepare(facts, device=CPU, dtype=torch.bfloat16, mixup=0.4)(batch)
    assert plain.dtype == torch.float32
    assert np.array_equal(plain.numpy(), batch.labels)
    _, targets = Prepare(facts, device=CPU, dtype=torch.bfloat16, mixup=0.4)(batch, step=0)
    share = mixup_weight(0.4, 0, 0)
    assert torch.allclose(targets, share * plain + (1 - share) * plain.roll(1, 0))


def test_evaluation_is_never_mixed_and_one_sample_mixes_with_itself():
    prepare = Prepare(facts_of(), device=CPU, dtype=torch.float32, mixup=0.4)
    plain, classes = Prepare(facts_of(), device=CPU, dtype=torch.float32)(batch_of())
    images, targets = prepare(batch_of())
    assert torch.equal(images, plain)
    assert torch.equal(targets, classes)
    alone, _ = prepare(batch_of(1), step=0)
    assert torch.allclose(alone, prepare(batch_of(1))[0], atol=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_follow_the_beta_distribution_and_belong_to_seed_and_step(alpha):
    """Beta(α, α) has mean 1/2 and variance 1 / (4 (2α + 1))."""
    drawn = np.array([mixup_weight(alpha, 1, step) for step in range(4000)])
    assert drawn.mean() == pytest.approx(0.5, abs=0.02)
    assert drawn.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)
    assert mixup_weight(alpha, 1, 7) == drawn[7] != mixup_weight(alpha, 2, 7)


class LateDevice:
    """A GPU whose copies come as late as they may: none is made before an event after it is waited for."""

    def __init__(self) -> None:
        self.pending: deque[SimpleNamespace] = deque()
        self.done = 0
        self.recorded = 0
        self.waited_by_stream = 0

    def Stream(self, device):  # noqa: N802  as torch.cuda names it
        return SimpleNamespace(record_event=self.event)

    @contextmanager
    def stream(self, stream):
        yield

    def current_stream(self, device):
        return SimpleNamespace(wait_event=self.wait)

    def wait(self, event) -> None:
        self.waited_by_stream += 1

    def event(self):
        upto = self.recorded = self.done + len(self.pending)

        def synchronize() -> None:
            while self.done < upto:
                self.arrive()

        return SimpleNamespace(synchronize=synchronize)

    def arrive(self) -> None:
        time.sleep(0.005)  # so that threads write all that they may before it is read
        copy = self.pending.popleft()
        copy.values, self.done = copy.source.numpy().copy(), self.done + 1


def to(source, late, device, *, non_blocking=False):
    """In place of ``Tensor.to``."""
    assert non_blocking
    copy = SimpleNamespace(source=source, values=None, record_stream=lambda stream: None)
    late.pending.append(copy)
    return copy


def test_no_slot_is_written_while_its_copy_to_the_device_is_under_way(monkeypatch):
    device = LateDevice()
    monkeypatch.setattr(torch.Tensor, "to", partialmethod(to, device))
    carry = DeviceCopy(SimpleNamespace(type="cuda"), cuda=device)
    ring = Ring(slots(2 + HELD, (4,), "|u1"), held=HELD, threads=2)
    copies = []
    for _ in range(2):  # the last batches of an epoch are held in the next
        first = len(copies)
        jobs = ([(number, row) for row in range(4)] for number in range(first, first + 30))
        for filled in ring.run(jobs, lambda job, slot: slot.__setitem__(job[1], job[0])):
            (copy,) = carry(filled.slot)
            copies.append(copy)
    assert not carry.on_cpu
    assert len(device.pending) == 1  # only the last may still be under way
    device.arrive()
    assert [copy.values.tolist() for copy in copies] == [[number] * 4 for number in range(60)]
    assert device.waited_by_stream == 60
