"""Hand the newest checkpoints of one host to hosts that do not see its folder, through a store that all can reach.

Rank 0 writes checkpoints, and every rank goes on from the newest in the run directory as its own host sees it. The
giver puts one part at a time and waits until all takers have it, so the store never holds more than ``PART_BYTES``.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import List, Sequence

from torch._C._distributed_c10d import Store

from allpull.observe.store import PATIENCE
from allpull.rundir import layout
from allpull.rundir.write import private_folder

FILES = 2  # the newest may turn out to be damaged, and then the one before is gone on from
PART_BYTES = 4 << 20  # torch's store takes up to 8 MiB at once
UNFINISHED = ".tmp"


def give(store: Store, directory: str, *, takers: int) -> None:
    """Hand the newest checkpoints of run ``directory`` to ``takers`` hosts, each of which calls ``take``.

    Raises:
        DistStoreError: a taker did not take a part in time.
        OSError: a checkpoint cannot be read.
    """
    if takers == 0:
        return
    folder = os.path.join(directory, layout.CHECKPOINTS)
    files = [(name, os.path.getsize(os.path.join(folder, name))) for name in newest(folder)]
    store.set("files", json.dumps({"takers": takers, "files": files}))
    for name, size in files:
        with open(os.path.join(folder, name), "rb") as file:
            for key in _parts(name, size):
                store.set(key, file.read(PART_BYTES))  # type: ignore[arg-type]  # torch's stub knows text only
                store.wait([f"{key}/taken"], PATIENCE)
                store.delete_key(key)


def take(store: Store, directory: str, *, instead_of: Sequence[str] = ()) -> List[str]:
    """Take what ``give`` hands over into run ``directory``, in the place of files ``instead_of``; the paths.

    Raises:
        DistStoreError: the giver did not go on in time.
        OSError: a checkpoint cannot be written.
        ValueError: a name is none of a file in this folder.
    """
    for path in instead_of:
        with suppress(FileNotFoundError):
            os.unlink(path)
    told = json.loads(store.get("files"))
    folder = os.path.join(directory, layout.CHECKPOINTS)
    private_folder(folder)
    paths = []
    for name, size in told["files"]:
        if os.path.basename(name) != name or name.startswith("."):
            raise ValueError(f"{name!r} is no name of a checkpoint")
        path = os.path.join(folder, name)
        scratch = path + UNFINISHED
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for key in _parts(name, size):
                file.write(store.get(key))
                if store.add(f"{key}/takers", 1) == told["takers"]:
                    store.set(f"{key}/taken", "")
        os.replace(scratch, path)
        paths.append(path)
    return paths


def newest(folder: str) -> List[str]:
    """Names of the newest whole checkpoints in ``folder``, the newest last, as their names order them."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(folder) if not name.endswith(UNFINISHED))[-FILES:]
    return []


def _parts(name: str, size: int) -> List[str]:
    return [f"{name}/{start}" for start in range(0, size, PART_BYTES)]
