"""Begin with weights of a file, in torchvision's layout: a ``state_dict`` as ``torch.save`` writes it.

The networks here that torchvision has too have its names and shapes, so that its files fit, and those of anybody who
trained its networks. What training programs put around it is taken off: the dictionary in which it stands beside other
things, and the prefixes of DistributedDataParallel and ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from allpull.errors import BadInput
from allpull.train.checkpoint.safe_load import TENSORS, Unusable, load, plain

AROUND = (
    "model",
    "state_dict",
)  # as torchvision's reference scripts and allpull's checkpoints, and many others, have it
PREFIXES = ("module.", "_orig_mod.")
SHOWN = 3  # names in an error
ALONE = "give a file of tensors alone: torch.save(model.state_dict(), FILE)"
NAMED = TENSORS | {
    "torch._utils _rebuild_tensor",  # files of 2017, such as torchvision's first
    "torch.nn.parameter Parameter",
    "torch._utils _rebuild_parameter",
    "collections Counter",  # in the state of a learning-rate schedule
    "torch Size",
    "torch device",
    *(f"torch {kind}" for kind in ("float16", "bfloat16", "float32", "float64", "int64")),
}
"""What a file may name: tensors, and what stands beside them in files of trainings. None of it makes memory."""


def begin_with(model: nn.Module, path: Path, *, classes: int, new_head: bool) -> list[str]:
    """Put the weights of file ``path`` into ``model``, which tells ``classes`` apart; the names of those left out.

    ``new_head``: those are left out, and stay as they are, that differ in the number of classes and in nothing else.

    Raises:
        BadInput: there is no such file, it holds no weights, or those of another network.
    """
    theirs, ours = read_weights(path), model.state_dict()
    heads = [name for name, value in theirs.items() if _is_head(value, ours.get(name), classes)]
    if heads and not new_head:
        raise BadInput(
            f"{path} is for {len(theirs[heads[0]])} classes, and the data have {classes}",
            hint="--set model.new_head=true leaves its last layer out, which then begins anew",
        )
    # files from before 2018 do not count batches, which nothing here depends on
    missing = [name for name in ours if name not in theirs and not name.endswith("num_batches_tracked")]
    dropped: tuple[str, ...] = getattr(model, "not_loaded", ())  # by the network's own hook
    foreign = [name for name in theirs if name not in ours and not name.startswith(dropped)]
    other = [
        f"{name} {[*value.shape]}, here {[*ours[name].shape]}"
        for name, value in theirs.items()
        if name in ours and name not in heads and value.shape != ours[name].shape
    ]
    for words, names in (("it lacks", missing), ("it has besides", foreign), ("of other shapes are", other)):
        if names:
            some = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
            raise BadInput(
                f"{path} holds the weights of another network: {words} {some}",
                hint="give model.name, and the options of the model, as the weights were trained with",
            )
    model.load_state_dict({name: value for name, value in theirs.items() if name not in heads}, strict=False)
    return heads


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in file ``path`` by their names in the network, on the CPU. Loading it runs no code (``untrusted``).

    Raises:
        BadInput: there is no such file, or it holds no weights, or more of them than its size has room for.
    """
    try:
        content: Any = load(path, names=NAMED, streams=True)
    except Unusable as error:
        raise BadInput(f"model.weights: {path} {error}", hint=ALONE) from error
    for key in AROUND:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise BadInput(f"model.weights: {path} holds no weights", hint="it is to hold a state_dict")
    found = {_plain(name): value for name, value in content.items()}
    strange = [name for name, value in found.items() if not isinstance(value, Tensor)]
    if strange:
        raise BadInput(f"model.weights: {path}: {strange[0]:.60} is no tensor", hint="it is to hold a state_dict")
    try:
        copies: dict[str, Tensor] = plain(found, max_bytes=path.stat().st_size)
    except Exception as error:
        raise BadInput(f"model.weights: {path} cannot be read: {str(error)[:200]}", hint=ALONE) from error
    return copies


def _plain(name: object) -> str:
    """The name of a tensor in the network itself."""
    plain = str(name)
    while plain.startswith(PREFIXES):
        plain = plain.partition(".")[2]
    return plain


def _is_head(theirs: Tensor, ours: Tensor | None, classes: int) -> bool:
    """Whether two tensors differ in the number of classes alone, which comes first."""
    if ours is None or not ours.dim() or theirs.dim() != ours.dim():
        return False
    return len(ours) == classes != len(theirs) and theirs.shape[1:] == ours.shape[1:]
