"""What training makes small: the loss of a batch, as a sum over its samples, so that the shares of ranks are exact."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHORT = (torch.float16, torch.bfloat16)  # too coarse for the logarithms of a loss, which is then computed in float32


def summed_loss(logits: Tensor, targets: Tensor, *, multi_label: bool = False, label_smoothing: float = 0.0) -> Tensor:
    """The losses of the samples of ``logits`` [n, classes] added up, in float32 or, of a float64 model, in float64.

    One label a sample: cross-entropy with ``targets`` [n], or [n, classes] with the shares of each class, as mix-up
    makes them. Several labels a sample (``multi_label``): the mean over labels of the binary cross-entropy, with
    ``targets`` [n, labels] from 0 to 1. Smoothing moves that share of each target to all classes evenly (Szegedy et
    al. 2016), and of each label halfway to either answer.

    Raises:
        RuntimeError: the shapes do not fit each other.

    >>> summed_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2])).item() / 3  # ln 4
    1.3862943649291992
    >>> summed_loss(torch.zeros(3, 4), torch.ones(3, 4), multi_label=True).item() / 3  # ln 2
    0.6931471824645996
    """
    exact = logits.float() if logits.dtype in SHORT else logits
    if multi_label:
        wanted = targets.to(exact.dtype)
        if label_smoothing:
            wanted = wanted * (1 - label_smoothing) + label_smoothing / 2
        if wanted.shape != exact.shape:
            raise RuntimeError(f"answers {[*exact.shape]} and targets {[*wanted.shape]} are not both [samples, labels]")
        loss: Tensor = nn.functional.binary_cross_entropy_with_logits(exact, wanted, reduction="sum")
        return loss / exact.shape[1]
    wanted = targets.to(exact.dtype) if targets.dim() > 1 else targets.long()
    return nn.functional.cross_entropy(exact, wanted, reduction="sum", label_smoothing=label_smoothing)
