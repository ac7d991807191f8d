"""From a batch in host memory to what the model takes: copied, normalised, mixed on the device, channels last.

The loader writes a slot again once ``HELD`` (2) more batches have been asked for. On a GPU a copy goes on, on a stream
of its own, while the model still computes the step before; ``Prepare`` returns when the copy *before* it has ended. So
no slot is written while it is read: when batch k + 1 has been prepared, the copy of batch k is over, and only then can
batch k + 2, with which its slot becomes free, be asked for. Nothing waits that need not: as a rule that copy is long
done, and the model is not waited for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from allpull.data.loader.batches import Batch
from allpull.data.loader.feed import Facts

MIXED = 3  # stream of numbers beside those of orders (data/loader/order.py)


class Prepare:
    """Makes tensors of batches.

    ``dtype`` is that of the images; they are normalised and mixed in float32 (float64 where that is asked for) and then
    rounded once. ``mixup`` is the α of ``mixing_share``, 0 for none; partners are of the same rank's batch.
    """

    def __init__(
        self, facts: Facts, *, device: torch.device, dtype: torch.dtype, mixup: float = 0.0, seed: int = 0
    ) -> None:
        self.mixup, self.seed, self.dtype = mixup, seed, dtype
        self._classes, self._multi_label = facts.classes, facts.multi_label
        self._work = torch.float64 if dtype == torch.float64 else torch.float32
        self._mean, self._std = (self._by_channel(one, device) for one in (facts.mean, facts.std))
        self._carry = Carry(device)

    @property
    def phase(self) -> str:
        """The phase that a call belongs to: on a CPU nothing is copied, and making tensors is part of the input."""
        return "input" if self._carry.on_cpu else "copy"

    def _by_channel(self, numbers: float | tuple[float, ...], device: torch.device) -> float | Tensor:
        """One number as it is: with a tensor, digits would be rounded otherwise."""
        return numbers if isinstance(numbers, float) else torch.tensor(numbers, dtype=self._work, device=device)

    def __call__(self, batch: Batch, *, step: int | None = None) -> tuple[Tensor, Tensor]:
        """Images and targets of ``batch``; ``step`` is that of the training, which mixes; None: evaluation.

        Images are [n, channels, height, width], channels last in memory. Targets are classes [n] int64; for several
        labels zeros and ones [n, classes]; mixed ones shares [n, classes], which for one label add up to 1.
        """
        # labels are in ordinary memory, and a copy of them may have the host wait for the one before
        labels, images = self._carry(batch.labels, batch.images)
        images = self._normalised(images)  # still as stored: [n, height, width, channels]
        targets = labels.to(self._work) if self._multi_label else labels
        if self.mixup and step is not None:
            share = mixing_share(self.mixup, self.seed, step)
            if not self._multi_label:
                targets = functional.one_hot(targets, self._classes).to(self._work)
            images, targets = mixed(images, share), mixed(targets, share)
        return images.to(self.dtype).permute(0, 3, 1, 2), targets

    def _normalised(self, images: Tensor) -> Tensor:
        exact = images.to(self._work)
        if isinstance(self._mean, float) or isinstance(self._std, float):
            return (exact - self._mean).div_(self._std)
        # whole rows: over the channels alone a loop of torch's on a CPU is 3 numbers long, and takes 3 times as long
        mean, std = (one.repeat(images.shape[2]) for one in (self._mean, self._std))
        return (exact.flatten(2) - mean).div_(std).view(images.shape)


def mixing_share(alpha: float, seed: int, step: int) -> float:
    """The share λ of a sample in the mixture with its partner, drawn from Beta(``alpha``, ``alpha``).

    From (seed, step) alone: one number for all samples of a step on all ranks (Zhang, Cissé, Dauphin & Lopez-Paz 2018,
    "mixup: Beyond Empirical Risk Minimization", whose program also draws one a batch).
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, 0, MIXED]))
    return float(generator.beta(alpha, alpha))


def mixed(values: Tensor, share: float) -> Tensor:
    """λ · each of n + (1 − λ) · the one before it, the last before the first; the order is one of chance anyway."""
    return torch.lerp(values.roll(1, 0), values, share)


class Carry:
    """Copies arrays to the device; no copy of the call before is still reading when a call returns.

    ``cuda`` stands for ``torch.cuda``.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device) if device.type == "cuda" else None
        self._before: Any = None

    @property
    def on_cpu(self) -> bool:
        """Whether there is nothing to copy."""
        return self._device.type == "cpu"

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> list[Tensor]:
        """The arrays as tensors on the device, ready for whatever its current stream does next."""
        hosts = [torch.from_numpy(array) for array in arrays]
        if self._stream is None:
            return [host.to(self._device) for host in hosts]
        with self._cuda.stream(self._stream):
            copies = [host.to(self._device, non_blocking=True) for host in hosts]
        ended = self._stream.record_event()
        here = self._cuda.current_stream(self._device)
        here.wait_event(ended)
        for copy in copies:
            copy.record_stream(here)  # else its memory might be used again by the next copy while it is still read
        if self._before is not None:
            self._before.synchronize()
        self._before = ended
        return copies
