"""What all points of the compute probe share: how to build the model, and its device."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import nn

from allpull.probe.step_timing import noise
from allpull.rundir.job_file import JobFile
from allpull.schema.spec import RunSpec, from_plain


class Setting:
    """Common to all points: how to build the model, and its device."""

    def __init__(self, job: JobFile, device: torch.device) -> None:
        options, self.device = job.options, device
        self.classes, self.shape = options["classes"], (options["channels"], options["size"], options["size"])
        module, _, name = options["builder"].partition(":")
        self._build: Callable[..., nn.Module] = getattr(importlib.import_module(module), name)
        self._spec = from_plain(RunSpec, job.spec).model
        self.parameters = sum(one.numel() for one in self.model().parameters() if one.requires_grad)

    def model(self) -> nn.Module:
        """The model with the same initial weights each time, in channels-last memory format.

        Raises:
            AllpullError: no such model, or it does not accept such images.
        """
        torch.manual_seed(0)
        model = self._build(self._spec, channels=self.shape[0], classes=self.classes, pixels=self.shape[1:])
        return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def images(self, batch: int) -> torch.Tensor:
        """A batch of noise."""
        return noise((batch, *self.shape), self.device)
