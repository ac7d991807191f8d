"""Write into ``truth.json`` when planted faults struck, and how far wrong clocks were ahead. Standard library only.

Times are on the machine's monotonic clock, in ns: all hosts share it, and every record uses it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from allpull.rehearse.host.network import Change
from allpull.rehearse.host.order import Zero
from allpull.rundir.live.activity import STEP
from allpull.rundir.live.snapshot import read_live
from allpull.rundir.write import whole_json

KEY = "moments"
CLOCK = "the monotonic clock of this machine, which all hosts and records use"
_KINDS = {
    "throttle": ("slow-link", "host"),
    "throttle-uplink": ("slow-uplink", "switch"),
    "cut": ("host-cut-off", "host"),
    "kill": ("kill-rank", "rank"),
}


class FirstSteps:
    """Whether each of the ``ranks`` ranks that record into ``directory`` has ended its first step."""

    def __init__(self, directory: str, ranks: int) -> None:
        self._root = Path(directory).resolve()
        self._missing = set(range(ranks))

    def are_made(self) -> bool:
        """Check again; reads one small file for each rank that has not yet."""
        self._missing = {rank for rank in self._missing if not self._has_made(rank)}
        return not self._missing

    def _has_made(self, rank: int) -> bool:
        live = read_live(self._root, rank)
        return live is not None and live[STEP] > 0


class Moments:
    """The times under ``KEY`` in the truth file at ``path``; a full disk does not end the rehearsal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._moments: dict[str, Any] = {"clock": CLOCK, "zero": None, "struck": [], "clocks": []}

    def begin(self, zero: Zero) -> float:
        """Record that changes count from now, the moment called ``zero``; returns now, in s of the monotonic clock."""
        now_ns = time.monotonic_ns()
        self._moments["zero"] = {"of": zero, "monotonic_ns": now_ns}
        self._write()
        return now_ns / 1e9

    def add(self, change: Change, monotonic_ns: int) -> None:
        """Record that ``change`` struck."""
        self._moments["struck"].append({**plain(change), "monotonic_ns": monotonic_ns})
        self._write()

    def add_clock(self, clock: Mapping[str, Any]) -> None:
        """Record how far ``ahead_ns`` the wall clock of ``host`` was at ``monotonic_ns``; it drifts all the time."""
        self._moments["clocks"].append(dict(clock))
        self._write()

    def _write(self) -> None:
        with suppress(OSError, ValueError):
            truth = json.loads(self._path.read_text(encoding="utf-8"))
            whole_json(str(self._path), {**truth, KEY: self._moments})


def plain(change: Change) -> dict[str, Any]:
    """``change`` with the names of a cluster file; its rate is divided by ``shrink``.

    >>> plain(Change(kind="cut", at_s=4.0, number=1))
    {'kind': 'host-cut-off', 'host': 1, 'from_s': 4.0}
    """
    kind, what = _KINDS[change.kind]
    rate = {"rate_bytes_per_s": change.bits_per_s / 8} if change.bits_per_s else {}
    return {"kind": kind, what: change.number, "from_s": change.at_s, **rate}


def not_struck(path: Path, changes: tuple[Change, ...]) -> list[dict[str, Any]]:
    """Those of ``changes`` for which the truth file at ``path`` has no time; none if it cannot be read."""
    try:
        struck = json.loads(path.read_text(encoding="utf-8")).get(KEY, {}).get("struck", [])
    except (OSError, ValueError):
        return []
    known = [{key: value for key, value in one.items() if key != "monotonic_ns"} for one in struck]
    return [one for one in map(plain, changes) if one not in known]
