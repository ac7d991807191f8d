"""Read how the ranks of a host ended, from what its agent and its ranks wrote; every launcher asks here."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allpull.observe.versions import PACKAGES
from allpull.rundir import layout, redact
from allpull.schema.events import Raised

MAX_REASON = 500  # characters
TAIL_LINES = 20
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """One rank that did not end well. ``exit_code`` is negative for a signal, as in ``subprocess``.

    ``raised_ns`` is a moment of the monotonic clock of boot ``boot_id``, ``realtime_ahead_ns`` what makes it one of
    real time.
    """

    rank: int
    host: str
    exit_code: int
    exception: str | None = None
    hint: str | None = None
    raised_ns: int | None = None
    boot_id: str | None = None
    realtime_ahead_ns: int = 0
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnding:
    """How one host's ranks ended: the code its agent returned, and those that failed.

    ``reason`` says in words what ended them where it was none of them, ``log_tail`` what there is to read then.
    ``stopped``: the user asked for the end. ``versions`` are those that ranks ran with there, as far as it said them.
    """

    host: str
    code: int
    failures: tuple[RankFailure, ...] = ()
    reason: str | None = None
    log_tail: tuple[str, ...] = ()
    stopped: bool = False
    versions: Mapping[str, str | None] = field(default_factory=dict)


def log_tail(path: Path, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """The last ``lines`` lines of a log, secrets masked; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ()
    clean, _ = redact.text(text)
    return tuple(deque((line[:500] for line in clean.splitlines() if line.strip()), maxlen=lines))


def read_host_ending(directory: Path, host: str, code: int) -> HostEnding:
    """How the ranks of ``host`` ended in run directory ``directory``.

    ``host`` is the agent's ``--name``, ``code`` what its agent returned; an agent that was killed wrote nothing, and
    then the code is all there is.
    """
    return _ended(directory, host, code, _told(directory / layout.ended_file(host)))


def read_host_endings(directory: Path) -> list[HostEnding]:
    """How the ranks of every host ended that has written so; for jobs whose agents were not started by us.

    They are in the order of the job's hosts, which is that of ranks; by name where an older agent did not write it.
    """
    found = []
    for path in sorted((directory / layout.ENDED).glob("*.json")):
        told = _told(path)
        if isinstance(told.get("host"), str) and type(told.get("code")) is int:
            index = told.get("index")
            place = index if type(index) is int else 0
            found.append((place, _ended(directory, told["host"], told["code"], told)))
    return [ended for _, ended in sorted(found, key=lambda item: item[0])]


def endings_from_ranks(
    directory: Path, ranks: int, code: int, *, first: tuple[int, int] | None, log_tail: tuple[str, ...]
) -> list[HostEnding]:
    """How each host ended where no agent says so: from the ranks' own records and the starter's exit ``code``.

    ``first`` is the rank that the starter blames, with its exit code; it ended the others, so of them only those
    failed that recorded an exception. ``log_tail`` is what the starter said, for where no rank failed.
    """
    hosts: dict[str, list[RankFailure]] = {}
    blamed = dict([first] if first and code else [])
    for rank in range(ranks):
        host = _host_of(directory, rank)
        if host is None and rank not in blamed:
            continue
        failures = hosts.setdefault(host or "?", [])
        if rank in blamed or (code and _exception(directory / layout.events_file(rank)) is not None):
            failures.append(_failure(directory, host or "?", {"rank": rank, "exit_code": blamed.get(rank, 1)}))
    if not hosts:
        reason = "mpirun started no rank" if code else None
        return [HostEnding(host="?", code=code, reason=reason, log_tail=log_tail)]
    return [HostEnding(host=h, code=code, failures=tuple(f), log_tail=log_tail) for h, f in hosts.items()]


def _host_of(directory: Path, rank: int) -> str | None:
    """The host that ``rank`` says it runs on, or None where it left no records."""
    host = _header(directory, rank).get("host")
    return host if isinstance(host, str) else None


def _clock_of(header: dict[str, Any]) -> tuple[str | None, int]:
    """The boot whose monotonic clock a rank used, and how far real time was ahead of that clock."""
    boot_id = header.get("boot_id")
    try:
        ahead_ns = int(header["clock"]["realtime_ns"]) - int(header["clock"]["monotonic_ns"])
    except (KeyError, TypeError, ValueError):
        ahead_ns = 0
    return boot_id if isinstance(boot_id, str) else None, ahead_ns


def _header(directory: Path, rank: int) -> dict[str, Any]:
    """The first line of a rank's step records; empty where there is none."""
    try:
        with (directory / layout.steps_file(rank)).open("rb") as file:
            header = json.loads(file.readline(TAIL_BYTES))
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def _told(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told


def _ended(directory: Path, host: str, code: int, told: dict[str, Any]) -> HostEnding:
    failures = tuple(_failure(directory, host, item) for item in told.get("failures", []))
    reason = told.get("reason")
    shown = redact.text(reason[:MAX_REASON])[0] if isinstance(reason, str) else None
    return HostEnding(host=host, code=code, failures=failures, reason=shown, versions=_versions(told.get("versions")))


def _versions(told: object) -> dict[str, str | None]:
    """Versions of packages by name, as an agent wrote them; others than those that are recorded are left out."""
    if not isinstance(told, dict):
        return {}
    kept = {name: told[name] for name in ("python", *PACKAGES) if name in told}
    return {name: text for name, text in kept.items() if text is None or (isinstance(text, str) and len(text) < 100)}


def _failure(directory: Path, host: str, told: dict[str, Any]) -> RankFailure:
    return failure_of(directory, int(told["rank"]), host, exit_code=int(told["exit_code"]))


def failure_of(directory: Path, rank: int, host: str, *, exit_code: int) -> RankFailure:
    """The failure of ``rank`` on ``host``, with the exception that it recorded, if it did."""
    raised = _exception(directory / layout.events_file(rank))
    boot_id, ahead_ns = _clock_of(_header(directory, rank))
    return RankFailure(
        rank=rank,
        host=host,
        exit_code=exit_code,
        exception=None if raised is None else f"{raised.type}: {raised.message}",
        hint=None if raised is None else raised.hint,
        raised_ns=None if raised is None else raised.t_ns,
        boot_id=boot_id,
        realtime_ahead_ns=ahead_ns,
        log_tail=log_tail(directory / layout.log_file(rank)),
    )


def _exception(events: Path) -> Raised | None:
    """The last exception that a rank recorded, or nothing."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, events.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if b'"exception"' in line:
            with contextlib.suppress(ValueError):
                return Raised.model_validate_json(line)
    return None
