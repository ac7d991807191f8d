"""The training loss of a batch as a sum over samples, so that each rank's share is exact."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHORT = (torch.float16, torch.bfloat16)  # too coarse for logarithms: the loss is then computed in float32


def summed_loss(logits: Tensor, targets: Tensor, *, multi_label: bool = False, label_smoothing: float = 0.0) -> Tensor:
    """The sum of the losses of ``logits`` [n, classes], in float32, or float64 for a float64 model.

    One label per sample: cross-entropy with ``targets`` [n], or [n, classes] with the share of each class, as mixup
    makes them. Several labels per sample (``multi_label``): the mean over labels of the binary cross-entropy, with
    ``targets`` [n, labels] from 0 to 1. Smoothing distributes that share of each target evenly over all classes
    (Szegedy et al. 2016), and moves each of several labels by that share towards one half.

    Raises:
        RuntimeError: the shapes do not match.

    >>> summed_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2])).item() / 3  # ln 4
    1.3862943649291992
    >>> summed_loss(torch.zeros(3, 4), torch.ones(3, 4), multi_label=True).item() / 3  # ln 2
    0.6931471824645996
    """
    exact = logits.float() if logits.dtype in SHORT else logits
    if multi_label:
        smoothed = targets.to(exact.dtype)
        if label_smoothing:
            smoothed = smoothed * (1 - label_smoothing) + label_smoothing / 2
        if smoothed.shape != exact.shape:
            raise RuntimeError(f"answers {[*exact.shape]} and targets {[*smoothed.shape]} are not both [n, labels]")
        loss: Tensor = nn.functional.binary_cross_entropy_with_logits(exact, smoothed, reduction="sum")
        return loss / exact.shape[1]
    smoothed = targets.to(exact.dtype) if targets.dim() > 1 else targets.long()
    return nn.functional.cross_entropy(exact, smoothed, reduction="sum", label_smoothing=label_smoothing)
