"""What two ranks on one host, with GPUs that are none, make of ``parallel.backend``: ``… FOLDER RANK``."""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from allpull import marks
from allpull.errors import AllpullError
from allpull.probe.ranks import join_group
from allpull.schema.trainspec import ParallelSpec
from allpull.train.parallel.ranks import join, leave

RANKS = 2
SINGLE, PAIR = ["GPU-a"], ["GPU-a", "GPU-b"]


class Heard:
    """Hears what is remarked and recorded."""

    def __init__(self):
        self.remarks, self.metrics = [], {}

    def metric(self, name, value, *_):
        self.metrics[name] = value

    def remark(self, text):
        self.remarks.append(text)


def pretend(gpus):
    """Have torch say that this host has ``gpus``, and that it was built with NCCL if it has any."""
    torch.cuda.is_available = lambda: bool(gpus)
    torch.cuda.device_count = lambda: len(gpus)
    torch.cuda.set_device = lambda device: None
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid=gpus[device.index])
    dist.is_nccl_available = lambda: bool(gpus)


def asked(backend, gpus, strategy="ddp", by=join):
    """How these ranks join; the sum over them, on the CPU, shows that they do."""
    pretend(gpus)
    heard = Heard()
    before = marks.listen(heard)
    try:
        ranks = join(1, ParallelSpec(backend=backend, strategy=strategy)) if by is join else by(1, backend)
        told = {"device": str(ranks.device), "backend": dist.get_backend(), "total": total()}
        if by is join:
            told["all"] = ranks.all_report(f"{backend} {len(gpus)}", 30.0)
    except AllpullError as error:
        return {"error": type(error).__name__, "says": str(error), "hint": error.hint}
    else:
        return {**told, "remarks": heard.remarks, "metrics": heard.metrics}
    finally:
        marks.listen(before)
        leave()


def total():
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()


CASES = {
    "cpu": lambda: asked("auto", []),
    "cpu gloo": lambda: asked("gloo", []),
    "cpu fsdp": lambda: asked("gloo", [], "fsdp"),
    "cpu nccl": lambda: asked("nccl", []),
    "shared": lambda: asked("auto", SINGLE),
    "shared gloo": lambda: asked("gloo", SINGLE),
    "shared fsdp": lambda: asked("auto", SINGLE, "fsdp"),
    "shared nccl": lambda: asked("nccl", SINGLE),
    "own gloo": lambda: asked("gloo", PAIR),
    "one of two fsdp": lambda: asked("auto", SINGLE if os.environ["RANK"] == "0" else [], "fsdp"),
    "probe": lambda: asked("auto", SINGLE, by=join_group),
    "probe without a device": lambda: asked("", PAIR, by=join_group),
}


def store_of(folder, rank, case):
    """A store for each case, as torchrun's agent serves a new one to each attempt; rank 0 keeps it."""
    port, store = folder / f"port {case}", None
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        written = folder / "port"
        written.write_text(str(store.port))
        written.rename(port)
    while not port.exists():
        time.sleep(0.01)
    os.environ["MASTER_PORT"] = port.read_text()
    return store


def main(folder, rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_USE_AGENT_STORE="True")
    found, stores = {}, []
    for name, case in CASES.items():
        stores.append(store_of(folder, rank, name))
        found[name] = case()
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    while rank == 0 and not (folder / "rank-1.json").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
