"""Progressive resizing: small pictures in the first epochs, full ones in the last, the same size on every rank.

As of Howard's team in DAWNBench (fast.ai 2018) and in ffcv-imagenet, which goes in steps of 32 pixels: each size is
another shape for cuDNN, torch.compile and CUDA graphs, so there should be few.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGE_PIXELS = 128  # from here on sizes go by 32, the whole stride of networks for ImageNet
LARGE_STEP, SMALL_STEP = 32, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Sides of ``first`` pixels in epoch 0, ``last`` from epoch ``epochs`` on, and in between along a straight line.

    Sizes between the ends are rounded down to multiples of 32, or of 4 where ``last`` is below 128.
    """

    first: int
    last: int
    epochs: int

    def size(self, epoch: int) -> int:
        """Pixels of a side in ``epoch``, counted from 0.

        >>> [Growth(first=128, last=224, epochs=6).size(epoch) for epoch in range(8)]
        [128, 128, 160, 160, 192, 192, 224, 224]
        """
        if epoch >= self.epochs:
            return self.last
        step = LARGE_STEP if self.last >= LARGE_PIXELS else SMALL_STEP
        grown = self.first + (self.last - self.first) * epoch // self.epochs
        return max(self.first, grown // step * step)


def growth(first_size: int, size: int, growth_epochs: int, epochs: int) -> Growth:
    """What the options ask for: ``first_size`` 0 is no growth, ``growth_epochs`` 0 growth until the last epoch.

    >>> growth(0, 224, 0, 10).size(0), growth(64, 96, 0, 2).size(0), growth(64, 96, 0, 2).size(1)
    (224, 64, 96)
    """
    if not first_size:
        return Growth(first=size, last=size, epochs=0)
    return Growth(first=first_size, last=size, epochs=growth_epochs or epochs - 1)
