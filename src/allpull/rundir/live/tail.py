"""Follow the records of a job while it runs: read what was appended since the last look, whole lines only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allpull.rundir import layout

TOLD = {"test_top1": "accuracy", "test_map": "mAP"}
"""What is said of an evaluated epoch: the metric that its kind of labels has, in words."""

CHUNK = 1 << 20  # at most this much per look; a record that grows faster is caught up with later


class Tail:
    """One growing file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The objects that were appended since the call before; lines that are not JSON objects are passed over."""
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # another attempt of a requeued job began a file of its own
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                data = file.read(CHUNK)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


class Follower:
    """What rank 0 of a running training has said so far."""

    def __init__(self, directory: Path) -> None:
        self._steps = Tail(directory / layout.steps_file(0))
        self._events = Tail(directory / layout.events_file(0))
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
        """Each newly evaluated epoch with its values in words."""
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
            elif isinstance(name, str) and name in TOLD and isinstance(event.get("epoch"), int):
                loss = "" if self._loss is None else f", loss {self._loss:.3f}"
                yield event["epoch"], f"test {TOLD[name]} {value:.1%}{loss}"

    def remarks(self) -> list[str]:
        """What was remarked since the call before, as far as ``epochs`` has read."""
        found, self._remarks = self._remarks, []
        return found
