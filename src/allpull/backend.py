"""Choose the device of a rank, and the backend of its process group: NCCL or Gloo.

NCCL needs a GPU for each rank and refuses two ranks on one. Gloo works everywhere; it copies GPU tensors
through the CPU. All ranks must choose the same backend, or they wait for each other forever, and a host may lack the
GPUs that others have. So they count their GPUs in the rendezvous store before they create a process group.

On GPU tensors Gloo does broadcast, reduce, all-reduce, gather, all-gather, scatter and all-to-all, synchronised with
the default stream (``ProcessGroupGloo.cpp``; ``tests/gpu`` reduces gradients of two ranks on one GPU). FSDP2 is not
available with it: its device mesh creates its own group, with NCCL, and gathering whole weights crashes Gloo (pytorch
issue 152645).
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from allpull.errors import BadInput, MissingPart

GLOO, NCCL = "gloo", "nccl"
STORE_FILE = "ALLPULL_STORE_FILE"
"""Variable with the path of the ranks' store where one host has them all; unset: it is at MASTER_ADDR:MASTER_PORT."""
STORE_TIMEOUT = timedelta(minutes=30)  # as of torch's own ``env://``


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRank:
    """A rank, its device and its backend; ``remark``, on rank 0, explains an unexpected choice to readers of the run.

    ``backend`` is "" for a single rank, which needs no process group. ``gpus``: whether any of the ranks has a GPU.
    """

    rank: int
    ranks: int
    device: torch.device
    backend: str
    gpus: bool
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Of ``ranks`` ranks: how many have a GPU, how many do not share it, and how many of these can use NCCL."""

    ranks: int
    on_gpu: int
    own_gpu: int
    fit: int


def join(requested: str) -> JoinedRank:
    """Join the process group of the ranks that torchrun, or an equivalent, started.

    ``requested``: the option ``parallel.backend``.

    Raises:
        MissingPart: torch or a host lacks the requested backend.
        BadInput: ranks would share a GPU through NCCL.
    """
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = own_device(int(os.environ.get("LOCAL_RANK", "0")))
    is_fit = device.type == "cuda" and dist.is_nccl_available()
    if ranks == 1:
        on_gpu = int(device.type == "cuda")
        choose_backend(requested, Census(ranks=1, on_gpu=on_gpu, own_gpu=on_gpu, fit=int(is_fit)))
        return JoinedRank(rank=rank, ranks=ranks, device=device, backend="", gpus=bool(on_gpu))
    store = ranks_store()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    census = take_census(PrefixStore(f"allpull/backend/{attempt}", store), ranks, gpu_name(device), can_nccl=is_fit)
    backend = choose_backend(requested, census)
    dist.init_process_group(backend, store=PrefixStore("default_pg", store), rank=rank, world_size=ranks)
    remark = gloo_remark(requested, backend, census) if rank == 0 else ""
    return JoinedRank(rank=rank, ranks=ranks, device=device, backend=backend, gpus=census.on_gpu > 0, remark=remark)


def ranks_store() -> Store:
    """The store in which all ranks of this attempt meet.

    Ranks of one host meet in a file that only their user can open: any user of the host could connect to a port, list
    the keys of torch's store there and change them.
    """
    path = os.environ.get(STORE_FILE)
    if not path:
        store: Store = next(rendezvous("env://"))[0]
        return store
    in_file = FileStore(path)
    in_file.set_timeout(STORE_TIMEOUT)
    return in_file


def own_device(local_rank: int) -> torch.device:
    """The device of the rank with this local rank, which becomes the current one.

    GPUs are assigned round-robin, so this also works with fewer GPUs than ranks, or where each rank sees only its own.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus)
    torch.cuda.set_device(device)
    return device


def gpu_name(device: torch.device) -> str:
    """A name that is unique among the GPUs of all hosts; "" if ``device`` is no GPU."""
    if device.type != "cuda":
        return ""
    known = getattr(torch.cuda.get_device_properties(device), "uuid", None)  # torch before 2.5 has none
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return str(known or f"{socket.gethostname()} {shown} {device.index}")


def take_census(store: Store, ranks: int, gpu: str, *, can_nccl: bool) -> Census:
    """Count in ``store`` the GPUs of all ``ranks`` ranks, and on how many NCCL can run; the same result on all.

    Each rank calls it once, and waits for the others.
    """
    is_first = bool(gpu) and store.add(f"gpu {gpu}", 1) == 1
    counted = {"on_gpu": bool(gpu), "own_gpu": is_first, "fit": is_first and can_nccl}
    for name, holds in counted.items():
        store.add(name, int(holds))
    if store.add("counted", 1) == ranks:
        store.set("all counted", "yes")
    store.wait(["all counted"])
    return Census(ranks=ranks, **{name: store.add(name, 0) for name in counted})


def choose_backend(requested: str, census: Census) -> str:
    """The backend for the ranks of ``census``, for the option ``requested``: auto, nccl or gloo.

    >>> choose_backend("auto", Census(ranks=4, on_gpu=4, own_gpu=4, fit=4))
    'nccl'
    >>> choose_backend("auto", Census(ranks=4, on_gpu=4, own_gpu=2, fit=2))
    'gloo'

    Raises:
        MissingPart: torch or a host lacks the requested backend.
        BadInput: ranks would share a GPU through NCCL.
    """
    if requested == NCCL and census.fit < census.ranks:
        _refuse_nccl(census)
    backend = NCCL if requested != GLOO and census.fit == census.ranks else GLOO
    if backend == GLOO and census.ranks > 1 and not dist.is_gloo_available():
        raise MissingPart(
            f"ranks would exchange through Gloo, and torch {torch.__version__} was built without it",
            hint="install another build of torch, or use one GPU per rank with parallel.backend=nccl",
        )
    return backend


def _refuse_nccl(census: Census) -> None:
    """Raise the reason why NCCL cannot serve the ranks of ``census``."""
    instead = "parallel.backend=auto uses Gloo where NCCL cannot work"
    if census.on_gpu < census.ranks:
        raise MissingPart(
            f"parallel.backend=nccl: NCCL is for GPUs, and {census.ranks - census.on_gpu} of {census.ranks} ranks"
            " have none",
            hint=instead,
        )
    if census.own_gpu < census.ranks:
        raise BadInput(
            f"parallel.backend=nccl: {census.ranks} ranks share {census.own_gpu} GPUs, and NCCL refuses two ranks"
            " on one GPU",
            hint=f"start at most one rank per GPU; {instead}",
        )
    raise MissingPart(
        f"parallel.backend=nccl: torch was built without NCCL (on {census.ranks - census.fit} of {census.ranks} ranks)",
        hint=f"install a build of torch with CUDA; {instead}",
    )


def gloo_remark(requested: str, backend: str, census: Census) -> str:
    """The remark on ranks with GPUs that use Gloo; "" if none is due."""
    if backend != GLOO or not census.on_gpu:
        return ""
    if census.own_gpu < census.on_gpu:
        why = f"{census.on_gpu} ranks share {census.own_gpu} GPU{'s' * (census.own_gpu > 1)}"
    elif census.on_gpu < census.ranks:
        why = f"only {census.on_gpu} of {census.ranks} ranks have a GPU"
    elif requested == GLOO:
        return ""
    else:
        why = "torch was built without NCCL"
    return f"parallel.backend: ranks exchange through Gloo, via the CPU: {why}"
