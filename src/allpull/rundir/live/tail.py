"""Follow the records of a job while it runs: read what was appended since the last read, whole lines only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allpull.errors import RunDirError
from allpull.rundir import layout, safe_open

METRIC_LABELS = {"test_top1": "accuracy", "test_map": "mAP"}
"""The metrics shown for an evaluated epoch, with their display names."""

CHUNK = 1 << 20  # read at most at once; the rest follows with later reads


class Tail:
    """One growing file of JSON lines."""

    def __init__(self, root: Path, relative: str) -> None:
        self._root = root
        self._relative = relative
        self._offset = 0
        self._inode = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The objects appended since the previous call; lines that are not JSON objects are skipped."""
        try:
            with safe_open.opened(self._root, self._relative) as (file, _):
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # another attempt of a requeued job began a new file
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                data = file.read(CHUNK)
        except RunDirError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                value = safe_open.parsed(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


class Follower:
    """What rank 0 of a running training has recorded so far."""

    def __init__(self, directory: Path) -> None:
        root = directory.resolve()
        self._steps = Tail(root, layout.steps_file(0))
        self._events = Tail(root, layout.events_file(0))
        self._last_step = -1
        self._loss: float | None = None
        self.steps_per_epoch = 0
        self._remarks: list[str] = []

    def steps_done(self) -> int:
        """Steps that rank 0 has recorded."""
        for record in self._steps.new():
            step = record.get("step")
            if isinstance(step, int):
                self._last_step = step
        return self._last_step + 1

    def epochs(self) -> Iterator[tuple[int, str]]:
        """Each newly evaluated epoch with its metrics as text."""
        for event in self._events.new():
            if event.get("kind") == "remark" and isinstance(event.get("text"), str):
                self._remarks.append(event["text"])
            if event.get("kind") != "metric" or not isinstance(event.get("value"), int | float):
                continue
            name, value = event.get("name"), event["value"]
            if name == "steps_per_epoch":
                self.steps_per_epoch = int(value)
            elif name == "train_loss":
                self._loss = value
            elif isinstance(name, str) and name in METRIC_LABELS and isinstance(event.get("epoch"), int):
                loss = "" if self._loss is None else f", loss {self._loss:.3f}"
                yield event["epoch"], f"test {METRIC_LABELS[name]} {value:.1%}{loss}"

    def remarks(self) -> list[str]:
        """Remarks since the previous call, as far as ``epochs`` has read."""
        new, self._remarks = self._remarks, []
        return new
