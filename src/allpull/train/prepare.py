"""Turn a batch in host memory into model input: copied to the device, normalised, mixed up, channels last.

The loader reuses a slot once ``HELD`` (2) more batches have been requested. On a GPU a copy runs on its own stream
while the model still computes the previous step; ``Prepare`` returns when the *previous* copy has ended. So no slot is
overwritten while it is read: when batch k + 1 is prepared, the copy of batch k has ended, and only then can batch
k + 2, which frees its slot, be requested. The host rarely waits: that copy usually ended long before, and the host
never waits for the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from allpull.data.loader.batches import Batch
from allpull.data.loader.feed import Facts

MIXUP_STREAM = 3  # random stream, distinct from those of sample orders (data/loader/order.py)


class Prepare:
    """Turns batches into tensors.

    ``dtype`` is the type of the images; they are normalised and mixed in float32 (float64 if that is ``dtype``) and
    then rounded once. ``mixup`` is the α of ``mixup_weight``, 0 for none; partners come from the same rank's batch.
    """

    def __init__(
        self, facts: Facts, *, device: torch.device, dtype: torch.dtype, mixup: float = 0.0, seed: int = 0
    ) -> None:
        self.mixup, self.seed, self.dtype = mixup, seed, dtype
        self._classes, self._multi_label = facts.classes, facts.multi_label
        self._work = torch.float64 if dtype == torch.float64 else torch.float32
        self._mean, self._std = (self._by_channel(one, device) for one in (facts.mean, facts.std))
        self._copy = DeviceCopy(device)

    @property
    def phase(self) -> str:
        """The phase of a call: on a CPU nothing is copied, and making tensors is part of the input."""
        return "input" if self._copy.on_cpu else "copy"

    def _by_channel(self, numbers: float | tuple[float, ...], device: torch.device) -> float | Tensor:
        """A single number stays a Python float: as a tensor it would round differently."""
        return numbers if isinstance(numbers, float) else torch.tensor(numbers, dtype=self._work, device=device)

    def __call__(self, batch: Batch, *, step: int | None = None) -> tuple[Tensor, Tensor]:
        """Images and targets of ``batch``; ``step`` is the training step that seeds mixup, None in evaluation.

        Images are [n, channels, height, width], channels last in memory. Targets are classes [n] int64; with several
        labels, zeros and ones [n, classes]; with mixup, shares [n, classes], which for single labels sum to 1.
        """
        # labels first: they are in pageable memory, so their copy may wait for the previous one
        labels, images = self._copy(batch.labels, batch.images)
        images = self._normalised(images)  # [n, height, width, channels], as stored
        targets = labels.to(self._work) if self._multi_label else labels
        if self.mixup and step is not None:
            weight = mixup_weight(self.mixup, self.seed, step)
            if not self._multi_label:
                targets = functional.one_hot(targets, self._classes).to(self._work)
            images, targets = mixed(images, weight), mixed(targets, weight)
        return images.to(self.dtype).permute(0, 3, 1, 2), targets

    def _normalised(self, images: Tensor) -> Tensor:
        exact = images.to(self._work)
        if isinstance(self._mean, float) or isinstance(self._std, float):
            return (exact - self._mean).div_(self._std)
        # whole rows: broadcasting over 3 channels makes torch's inner CPU loop 3 long and 3 times as slow
        mean, std = (one.repeat(images.shape[2]) for one in (self._mean, self._std))
        return (exact.flatten(2) - mean).div_(std).view(images.shape)


def mixup_weight(alpha: float, seed: int, step: int) -> float:
    """The weight λ of a sample in the mixture with its partner, drawn from Beta(``alpha``, ``alpha``).

    It depends on (seed, step) alone: one number for all samples of a step on all ranks (Zhang, Cissé, Dauphin &
    Lopez-Paz 2018, "mixup: Beyond Empirical Risk Minimization", whose program also draws one per batch).
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, 0, MIXUP_STREAM]))
    return float(generator.beta(alpha, alpha))


def mixed(values: Tensor, weight: float) -> Tensor:
    """λ · each sample + (1 − λ) · its predecessor, cyclically; the order of samples is random already."""
    return torch.lerp(values.roll(1, 0), values, weight)


class DeviceCopy:
    """Copies arrays to the device; when a call returns, the copies of the previous call have ended.

    ``cuda`` replaces ``torch.cuda`` in tests.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device) if device.type == "cuda" else None
        self._previous: Any = None

    @property
    def on_cpu(self) -> bool:
        """Whether there is nothing to copy."""
        return self._device.type == "cpu"

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> list[Tensor]:
        """The arrays as tensors on the device, ordered before later work of its current stream."""
        hosts = [torch.from_numpy(array) for array in arrays]
        if self._stream is None:
            return [host.to(self._device) for host in hosts]
        with self._cuda.stream(self._stream):
            copies = [host.to(self._device, non_blocking=True) for host in hosts]
        ended = self._stream.record_event()
        compute = self._cuda.current_stream(self._device)
        compute.wait_event(ended)
        for copy in copies:
            copy.record_stream(compute)  # otherwise the next copy could reuse its memory while it is read
        if self._previous is not None:
            self._previous.synchronize()
        self._previous = ended
        return copies
