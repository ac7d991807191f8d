"""Progressive resizing: small images in the first epochs, full size in the last, the same on every rank.

As by Howard's team in DAWNBench (fast.ai 2018) and in ffcv-imagenet, which uses steps of 32 pixels: each size is a new
shape for cuDNN, torch.compile and CUDA graphs, so there should be few.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGE_PIXELS = 128  # from here on multiples of 32, the total stride of networks for ImageNet
LARGE_STEP, SMALL_STEP = 32, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Sides of ``first`` pixels in epoch 0, ``last`` from epoch ``epochs`` on, and linear in between.

    Sizes between the ends are rounded down to multiples of 32, or of 4 where ``last`` is below 128.
    """

    first: int
    last: int
    epochs: int

    def size(self, epoch: int) -> int:
        """The side in pixels in ``epoch``, counted from 0.

        >>> [Growth(first=128, last=224, epochs=6).size(epoch) for epoch in range(8)]
        [128, 128, 160, 160, 192, 192, 224, 224]
        """
        if epoch >= self.epochs:
            return self.last
        step = LARGE_STEP if self.last >= LARGE_PIXELS else SMALL_STEP
        grown = self.first + (self.last - self.first) * epoch // self.epochs
        return max(self.first, grown // step * step)


def growth(first_size: int, size: int, growth_epochs: int, epochs: int) -> Growth:
    """The schedule of the options: ``first_size`` 0 means none, ``growth_epochs`` 0 growth until the last epoch.

    >>> growth(0, 224, 0, 10).size(0), growth(64, 96, 0, 2).size(0), growth(64, 96, 0, 2).size(1)
    (224, 64, 96)
    """
    if not first_size:
        return Growth(first=size, last=size, epochs=0)
    return Growth(first=first_size, last=size, epochs=growth_epochs or epochs - 1)
