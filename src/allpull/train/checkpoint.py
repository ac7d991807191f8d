"""Save where the training stands, and go on from there as if it had never stopped."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allpull.errors import BadInput
from allpull.rundir import layout
from allpull.rundir.write import private_folder
from allpull.train.ranks import Ranks
from allpull.units import show_bytes

FORMAT = 1
PATTERN = "step-*.pt"
WORDS = {"global_batch": "global batch", "samples": "samples", "seed": "seed", "dtype": "arithmetic"}
"""The fields of ``Cut``, in words."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where the training stands: ``step`` optimizer steps are done, ``in_epoch`` of them in ``epoch``.

    ``losses`` are the mean losses over the global batch of this epoch's steps so far.
    """

    step: int = 0
    epoch: int = 0
    in_epoch: int = 0
    losses: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What decides which sample comes when, and how exactly it is counted: the same for all of one epoch."""

    global_batch: int
    samples: int
    seed: int
    dtype: str


def save(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    *,
    cut: Cut,
    keep: int,
) -> None:
    """Write a checkpoint by rename and drop all but the newest ``keep``; a collective: every rank calls it.

    Batch statistics are kept for each rank, so that resuming on as many ranks is exact.

    Raises:
        BadInput: it cannot be written; older checkpoints are untouched.
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
        "cut": asdict(cut),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "buffers": buffers,
    }
    path = folder / f"step-{progress.step:010d}.pt"
    scratch = path.with_suffix(".tmp")
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError of its own
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        free = shutil.disk_usage(folder).free
        raise BadInput(
            f"cannot write checkpoint {path}: {reason} ({show_bytes(free)} free there)",
            hint="make room, or give another place with --out; --resume goes on from the checkpoint before",
        ) from error
    finally:
        scratch.unlink(missing_ok=True)
    for old in sorted(folder.glob(PATTERN))[:-keep]:
        old.unlink()


def restore(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks, *, cut: Cut) -> Progress:
    """Put the newest whole checkpoint of ``place`` (a run directory or one file) into model and optimizer.

    On another number of ranks every rank gets the mean of the batch statistics.

    Raises:
        BadInput: there is none, none can be read, it is of another network, or it stands within an epoch that was
            cut into other batches.
    """
    stored, path = _newest(place)
    theirs, ours = stored["cut"], asdict(cut)
    differing = [name for name in ours if theirs[name] != ours[name]]
    if stored["in_epoch"] and differing:
        name = differing[0]
        raise BadInput(
            f"{path} stands within an epoch of {WORDS[name]} {theirs[name]}, this training has {ours[name]}",
            hint="keep it as it was, or go on from the end of an epoch: samples would be repeated or skipped",
        )
    try:
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        first = " ".join(line.strip() for line in str(error).splitlines()[:2])[:300]
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
        if isinstance(stored, dict) and stored.get("format") == FORMAT and _is_whole(stored):
            return stored, path
        problem = f"{path.name} is no checkpoint of this trainer"
    raise BadInput(f"cannot go on from {place}: {problem}", hint="give the run directory of a training")


def _is_whole(stored: dict[str, Any]) -> bool:
    """Whether everything is there that is used without a further look."""
    counts = [stored.get(name) for name in ("step", "epoch", "in_epoch")]
    cut, buffers, losses = stored.get("cut"), stored.get("buffers"), stored.get("losses")
    return (
        all(isinstance(count, int) and count >= 0 for count in counts)
        and isinstance(cut, dict)
        and set(cut) == set(WORDS)
        and isinstance(buffers, list)
        and len(buffers) > 0
        and all(isinstance(one, dict) for one in buffers)
        and isinstance(losses, list)
        and all(isinstance(loss, float) for loss in losses)
    )


def _put(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(values[name])


def _mean(values: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(values)
    return stacked.mean(0) if stacked.is_floating_point() else stacked[0]
