"""Save where the training stands, and go on from there as if it had never stopped."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.rundir.write import private_folder
from allpull.train.ranks import Ranks

FORMAT = 1
PATTERN = "step-*.pt"


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where the training stands: ``step`` optimizer steps are done, ``in_epoch`` of them in ``epoch``.

    ``losses`` are the mean losses over the global batch of this epoch's steps so far.
    """

    step: int = 0
    epoch: int = 0
    in_epoch: int = 0
    losses: list[float]


def save(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    *,
    global_batch: int,
    keep: int,
) -> None:
    """Write a checkpoint by rename and drop all but the newest ``keep``; a collective: every rank calls it.

    Batch statistics are kept for each rank, so that resuming on as many ranks is exact.
    """
    buffers = ranks.gather_buffers(model)
    if ranks.rank != 0:
        return
    private_folder(str(folder))
    content = {
        "format": FORMAT,
        "step": progress.step,
        "epoch": progress.epoch,
        "in_epoch": progress.in_epoch,
        "losses": progress.losses,
        "global_batch": global_batch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "buffers": buffers,
    }
    path = folder / f"step-{progress.step:010d}.pt"
    scratch = path.with_suffix(".tmp")
    try:
        with scratch.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    for old in sorted(folder.glob(PATTERN))[:-keep]:
        old.unlink()


def restore(
    place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks, *, global_batch: int
) -> Progress:
    """Put the newest whole checkpoint of ``place`` (a run directory or one file) into model and optimizer.

    On another number of ranks every rank gets the mean of the batch statistics.

    Raises:
        BadInput: there is none, none can be read, it is of another network, or it stands within an epoch that was
            cut into other global batches.
    """
    stored, path = _newest(place)
    if stored["in_epoch"] and stored["global_batch"] != global_batch:
        raise BadInput(
            f"{path} stands within an epoch of global batch {stored['global_batch']}, this training has {global_batch}",
            hint="keep the global batch (train.global_batch), or go on from the end of an epoch",
        )
    try:
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(
            f"{path} is of another network: {first}", hint="resume with the recipe it was made by"
        ) from error
    everyone = stored["buffers"]
    if len(everyone) == ranks.ranks:
        _put(model, everyone[ranks.rank])
    else:
        _put(model, {name: _mean([theirs[name] for theirs in everyone]) for name in everyone[0]})
    return Progress(
        step=stored["step"], epoch=stored["epoch"], in_epoch=stored["in_epoch"], losses=list(stored["losses"])
    )


def _newest(place: Path) -> tuple[dict[str, Any], Path]:
    candidates = [place] if place.is_file() else sorted((place / layout.CHECKPOINTS).glob(PATTERN), reverse=True)
    problem = "no checkpoint there"
    for path in candidates:
        try:
            stored = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            problem = f"{path.name} cannot be read: {str(error).splitlines()[0][:200]}"
            continue
        if isinstance(stored, dict) and stored.get("format") == FORMAT:
            return stored, path
        problem = f"{path.name} is no checkpoint of this trainer"
    raise BadInput(f"cannot go on from {place}: {problem}", hint="give the run directory of a training")


def _put(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(values[name])


def _mean(values: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(values)
    return stacked.mean(0) if stacked.is_floating_point() else stacked[0]
