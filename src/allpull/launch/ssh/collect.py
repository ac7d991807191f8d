"""Collect the records that hosts wrote to their own disks: each host sends one tar, which is unpacked as a stream.

The data, checkpoints included, is never held in memory, and there is no time limit: ssh itself notices a lost host.
The archive is not trusted: only plain files below known folders are written.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from pathlib import Path, PurePosixPath
from typing import IO

from allpull.launch.ssh.connection import Remote
from allpull.rundir import layout
from allpull.rundir.write import replaced_file

COLLECTED = (
    *(*layout.RECORDS, layout.LOGS, layout.ENDED, layout.PROCESSES, layout.CHECKPOINTS),
    *(layout.TRACES, layout.PROBES, layout.ATTEMPTS),
)
MAX_COLLECTED_BYTES = 1 << 40  # of one host: more than checkpoints come to, and a bound on what a hostile one can fill
CHUNK_BYTES = 1 << 20


class Copies:
    """Copies into run directory ``into``, several at once, which can be interrupted together."""

    def __init__(self, into: Path) -> None:
        self.broken_off = False
        self._into = into
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def collect(self, remote: Remote, directory: str) -> str | None:
        """Copy the records in ``directory`` of ``remote``; why some are missing, or None."""
        names = shlex.join(COLLECTED)
        pack = f'cd {shlex.quote(directory)} && for n in {names}; do [ -e "$n" ] && echo "$n"; done | tar -cf - -T -'
        with tempfile.TemporaryFile() as stderr:
            try:
                process = self._begin(remote.connection(pack), stderr)
            except FileNotFoundError:
                return "there is no ssh on this machine"
            assert process.stdout is not None
            trouble = None
            try:
                extract_records(process.stdout, self._into)
            except (tarfile.TarError, OSError) as error:
                trouble = (isinstance(error, OSError) and error.strerror) or str(error)
                _kill(process)  # it would wait for us to read more
            finally:
                process.stdout.close()
                code = process.wait()
                with self._lock:
                    self._processes.discard(process)
            stderr.seek(0)
            messages = stderr.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
        if self.broken_off:
            return "stopped before all were collected"
        if code != 0 and messages:  # if the remote side failed, the archive is truncated here too; the reason is there
            return messages[-1][:300]
        return trouble or (f"exit code {code}" if code else None)

    def break_off(self) -> None:
        """End all running copies, and start no more."""
        with self._lock:
            self.broken_off = True
            for process in self._processes:
                _kill(process)

    def _begin(self, command: list[str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
            self._processes.add(process)
            if self.broken_off:
                _kill(process)
        return process


def extract_records(archive: IO[bytes], into: Path) -> None:
    """Unpack record files from ``archive``; skips what is no plain file, lies elsewhere or exists already.

    Raises:
        tarfile.TarError: it is no archive, is truncated, or is too large.
        OSError: the disk is full, say.
    """
    total = 0
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            is_record = any(path.is_relative_to(folder) for folder in COLLECTED)
            if not member.isreg() or not is_record or ".." in path.parts:
                continue
            total += member.size
            if total > MAX_COLLECTED_BYTES:
                raise tarfile.TarError(f"it has more than {MAX_COLLECTED_BYTES >> 30:,} GiB of records")
            source = tar.extractfile(member)
            if source is not None and not (into / path).exists():
                _write(source, into / path, member.size)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process group by its leader: ssh may have a helper that holds our pipe."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _write(source: IO[bytes], target: Path, size: int) -> None:
    """Write ``size`` bytes to ``target`` atomically: a truncated file does not appear, and may be copied again."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replaced_file(str(target)) as part:
        shutil.copyfileobj(source, part, CHUNK_BYTES)
        if part.tell() != size:
            raise tarfile.ReadError("it is cut off")
