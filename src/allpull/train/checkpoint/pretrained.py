"""Start from pretrained weights of a file in torchvision's layout: a ``state_dict`` written by ``torch.save``.

Networks that torchvision also has use its names and shapes, so that its files fit, and those of others who trained its
networks. Wrappers of training programs are removed: the dictionary around the weights, and the prefixes of
DistributedDataParallel and ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from allpull.errors import BadInput
from allpull.train.checkpoint.safe_load import TENSOR_GLOBALS, UnusableFile, load, plain_copy

WRAPPER_KEYS = ("model", "state_dict")  # of torchvision's scripts and allpull's checkpoints; of many others
PREFIXES = ("module.", "_orig_mod.")
SHOWN = 3  # names in an error
TENSORS_ONLY = "give a file that holds only tensors: torch.save(model.state_dict(), FILE)"
ALLOWED_GLOBALS = TENSOR_GLOBALS | {
    "torch._utils _rebuild_tensor",  # files of 2017, such as torchvision's first
    "torch.nn.parameter Parameter",
    "torch._utils _rebuild_parameter",
    "collections Counter",  # in the state of a learning-rate schedule
    "torch Size",
    "torch device",
    *(f"torch {kind}" for kind in ("float16", "bfloat16", "float32", "float64", "int64")),
}
"""The globals that a file may name: tensors and what training programs save with them. None allocates memory."""


def load_pretrained(model: nn.Module, path: Path, *, classes: int, new_head: bool) -> list[str]:
    """Load the weights of file ``path`` into ``model`` with ``classes`` classes; returns the names that were skipped.

    ``new_head``: skip tensors that differ only in the number of classes; the model keeps its own.

    Raises:
        BadInput: there is no such file, it holds no weights, or those of another network.
    """
    stored, own = read_weights(path), model.state_dict()
    heads = [name for name, value in stored.items() if _is_head(value, own.get(name), classes)]
    if heads and not new_head:
        raise BadInput(
            f"{path} is for {len(stored[heads[0]])} classes, and the data have {classes}",
            hint="--set model.new_head=true skips its last layer, which then starts with random weights",
        )
    # files from before 2018 do not count batches, which nothing here depends on
    missing = [name for name in own if name not in stored and not name.endswith("num_batches_tracked")]
    dropped: tuple[str, ...] = getattr(model, "not_loaded", ())  # by the network's own hook
    foreign = [name for name in stored if name not in own and not name.startswith(dropped)]
    other = [
        f"{name} {[*value.shape]}, here {[*own[name].shape]}"
        for name, value in stored.items()
        if name in own and name not in heads and value.shape != own[name].shape
    ]
    for label, names in (("missing are", missing), ("unexpected are", foreign), ("of other shapes are", other)):
        if names:
            some = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
            raise BadInput(
                f"{path} holds the weights of another network: {label} {some}",
                hint="give model.name, and the options of the model, as the weights were trained with",
            )
    model.load_state_dict({name: value for name, value in stored.items() if name not in heads}, strict=False)
    return heads


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in file ``path`` by their names in the network, on the CPU. Loading runs no code (``safe_load``).

    Raises:
        BadInput: there is no such file, it holds no weights, or they claim more memory than its size.
    """
    try:
        content: Any = load(path, allowed=ALLOWED_GLOBALS, streams=True)
    except UnusableFile as error:
        raise BadInput(f"model.weights: {path} {error}", hint=TENSORS_ONLY) from error
    for key in WRAPPER_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise BadInput(f"model.weights: {path} holds no weights", hint="it must hold a state_dict")
    tensors = {_network_name(name): value for name, value in content.items()}
    not_tensors = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
    if not_tensors:
        raise BadInput(f"model.weights: {path}: {not_tensors[0]:.60} is not a tensor", hint="it must hold a state_dict")
    try:
        copies: dict[str, Tensor] = plain_copy(tensors, max_bytes=path.stat().st_size)
    except Exception as error:
        raise BadInput(f"model.weights: {path} cannot be read: {str(error)[:200]}", hint=TENSORS_ONLY) from error
    return copies


def _network_name(name: object) -> str:
    """The name of a tensor without the prefixes of wrappers."""
    stripped = str(name)
    while stripped.startswith(PREFIXES):
        stripped = stripped.partition(".")[2]
    return stripped


def _is_head(stored: Tensor, own: Tensor | None, classes: int) -> bool:
    """Whether two tensors differ only in the number of classes, their first dimension."""
    if own is None or not own.dim() or stored.dim() != own.dim():
        return False
    return len(own) == classes != len(stored) and stored.shape[1:] == own.shape[1:]
