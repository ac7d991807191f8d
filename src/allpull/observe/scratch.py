"""The private folder of a job on one host, outside the run directory, which the launcher can find and remove.

It holds what only running ranks need: the files of torch's agent, and the store in which ranks of one host meet.
Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time

PREFIX = "allpull-"
ENDING = "ended.json"
"""How the ranks of the host ended, where the run directory takes no more files."""
RAISED = "allpull"
"""Key of our exception event in the error file that torch's agent gives a rank."""
ATTEMPTS, PAUSE_S = 20, 0.1  # to remove a folder in which processes that are being ended still write


def path_of(directory: str, host: str) -> str:
    """The folder of the job in run ``directory`` on ``host``, in the temporary directory of this machine."""
    name = hashlib.sha256(f"{os.getuid()}\n{directory}\n{host}".encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return os.path.join(tempfile.gettempdir(), PREFIX + name)


def make(directory: str, host: str) -> str:
    """An empty folder that only this user can look into: ``path_of``, or another if a stranger took that name.

    Raises:
        OSError: it cannot be made.
    """
    path = path_of(directory, host)
    remove(path)  # of an agent that was killed
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return tempfile.mkdtemp(prefix=PREFIX)
    return path


def is_ours(path: str) -> bool:
    """Whether ``path`` is a folder, no link, that belongs to this user."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def remove(path: str) -> None:
    """Remove a folder of ours; a link, or what belongs to somebody else, is left alone.

    Ranks whose agent was killed may still write there for a moment.
    """
    for _ in range(ATTEMPTS):
        if not is_ours(path):
            return
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        time.sleep(PAUSE_S)
