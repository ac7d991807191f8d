"""Copy the newest checkpoints to hosts that do not share the folder, through the store that all hosts can reach.

Rank 0 writes checkpoints, and every rank resumes from the newest in the run directory of its own host. The sender puts
one part at a time and waits until all receivers have it, so the store never holds more than ``PART_BYTES``.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import List, Sequence

from torch._C._distributed_c10d import Store

from allpull.observe.store import PATIENCE
from allpull.rundir import layout
from allpull.rundir.write import SCRATCH, private_folder, replaced_file

FILES = 2  # if the newest is damaged, ranks resume from the one before
PART_BYTES = 4 << 20  # torch's store takes up to 8 MiB at once


def send(store: Store, directory: str, *, receivers: int) -> None:
    """Send the newest checkpoints of run ``directory`` to ``receivers`` hosts, each of which calls ``receive``.

    Raises:
        DistStoreError: a receiver did not take a part in time.
        OSError: a checkpoint cannot be read.
    """
    if receivers == 0:
        return
    folder = os.path.join(directory, layout.CHECKPOINTS)
    files = [(name, os.path.getsize(os.path.join(folder, name))) for name in newest(folder)]
    store.set("files", json.dumps({"takers": receivers, "files": files}))
    for name, size in files:
        with open(os.path.join(folder, name), "rb") as file:
            for key in _parts(name, size):
                store.set(key, file.read(PART_BYTES))  # type: ignore[arg-type]  # torch's stub knows text only
                store.wait([f"{key}/taken"], PATIENCE)
                store.delete_key(key)


def receive(store: Store, directory: str, *, replaced: Sequence[str] = ()) -> List[str]:
    """Receive what ``send`` sends into run ``directory``, in place of the files ``replaced``; returns the paths.

    Raises:
        DistStoreError: the sender did not continue in time.
        OSError: a checkpoint cannot be written.
        ValueError: a file name leaves the folder.
    """
    for path in replaced:
        with suppress(FileNotFoundError):
            os.unlink(path)
    offer = json.loads(store.get("files"))
    folder = os.path.join(directory, layout.CHECKPOINTS)
    private_folder(folder)
    paths = []
    for name, size in offer["files"]:
        if os.path.basename(name) != name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a checkpoint")
        path = os.path.join(folder, name)
        with replaced_file(path) as file:
            for key in _parts(name, size):
                file.write(store.get(key))
                if store.add(f"{key}/takers", 1) == offer["takers"]:
                    store.set(f"{key}/taken", "")
        paths.append(path)
    return paths


def newest(folder: str) -> List[str]:
    """Names of the newest complete checkpoints in ``folder``, in the order of names, which is that of time."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(folder) if not name.endswith(SCRATCH))[-FILES:]
    return []


def _parts(name: str, size: int) -> List[str]:
    return [f"{name}/{start}" for start in range(0, size, PART_BYTES)]
