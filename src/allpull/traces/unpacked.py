"""Unpack a trace file as it is read, within bounds, and stop at damage."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, BinaryIO

MAX_RATIO = 400  # unpacked to packed; gzip makes traces 10 to 30 times smaller, and a bomb of zeros a thousand times
FREE_BYTES = 64 << 20  # unpacked from any file before its ratio is checked


class Unpacked:
    """The bytes of ``file``, which has ``size_bytes``, unpacked where ``is_packed``.

    ``read_bytes`` counts the unpacked bytes; at most about ``limit_bytes`` are returned (None: no limit).
    """

    def __init__(self, file: BinaryIO, size_bytes: int, *, is_packed: bool, limit_bytes: int | None = None) -> None:
        self._file: Any = gzip.GzipFile(fileobj=file, mode="rb") if is_packed else file
        self._most = max(FREE_BYTES, MAX_RATIO * size_bytes) if is_packed else None
        self._limit = limit_bytes
        self._fault: str | None = None
        self.read_bytes = 0

    def read(self, size: int) -> bytes:
        """The next bytes, at most ``size``; b"" at the end.

        Raises:
            ValueError: the file is damaged from here on, passes its limit, or unpacks to far more than a trace does.
        """
        blobs: list[bytes] = []
        left = size
        while left and self._fault is None:
            try:
                blob: bytes = self._file.read1(left)  # ``read`` would lose what precedes the damage
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self._fault = f"not readable as gzip from byte {self.read_bytes:,} on: {error}"
                break
            if not blob:
                break
            blobs.append(blob)
            left -= len(blob)
            self.read_bytes += len(blob)
            self._fault = self._excess()
        if self._fault is not None and not blobs:
            raise ValueError(self._fault)
        return b"".join(blobs)

    def _excess(self) -> str | None:
        """Why no more is unpacked; None: more may follow."""
        if self._most is not None and self.read_bytes > self._most:
            return f"it unpacks to more than {MAX_RATIO} times its size, which no trace does"
        if self._limit is not None and self.read_bytes > self._limit:
            return "too large to read in full"
        return None
