"""How the ranks of each host ended: the record of it, and reading it from what agents and ranks wrote."""

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
    """One rank that failed. ``exit_code`` is negative for a signal, as in ``subprocess``.

    ``raised_ns`` is a time on the monotonic clock of boot ``boot_id``; add ``realtime_ahead_ns`` for real time.
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

    ``reason`` says what ended them if no rank did, and ``log_tail`` is then the end of the log. ``stopped``: the user
    stopped the job. ``versions`` are those that the ranks used there, as far as the host reported them.
    """

    host: str
    code: int
    failures: tuple[RankFailure, ...] = ()
    reason: str | None = None
    log_tail: tuple[str, ...] = ()
    stopped: bool = False
    versions: Mapping[str, str | None] = field(default_factory=dict)


def log_tail(path: Path, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """The last ``lines`` lines of a log, secrets masked; empty without a log."""
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

    ``host`` is the agent's ``--name``, ``code`` the agent's exit code. An agent that was killed wrote nothing else.
    """
    return _ended(directory, host, code, _read_json(directory / layout.ended_file(host)))


def read_host_endings(directory: Path) -> list[HostEnding]:
    """How the ranks ended on every host that has written it; for jobs whose agents were not started by us.

    In the order of the job's hosts, which is that of ranks; by name if an older agent did not write the order.
    """
    placed = []
    for path in sorted((directory / layout.ENDED).glob("*.json")):
        plain = _read_json(path)
        if isinstance(plain.get("host"), str) and type(plain.get("code")) is int:
            index = plain.get("index")
            place = index if type(index) is int else 0
            placed.append((place, _ended(directory, plain["host"], plain["code"], plain)))
    return [ended for _, ended in sorted(placed, key=lambda item: item[0])]


def endings_from_ranks(
    directory: Path, ranks: int, code: int, *, first: tuple[int, int] | None, log_tail: tuple[str, ...]
) -> list[HostEnding]:
    """How each host ended without an agent: from the ranks' own records and the exit ``code`` of mpirun.

    ``first`` is the rank that mpirun blames, with its exit code. mpirun ended the others, so of those only ranks that
    recorded an exception failed. ``log_tail`` is the end of mpirun's log, for the case that no rank failed.
    """
    hosts: dict[str, list[RankFailure]] = {}
    blamed_code = dict([first] if first and code else [])
    for rank in range(ranks):
        host = _host_of(directory, rank)
        if host is None and rank not in blamed_code:
            continue
        failures = hosts.setdefault(host or "?", [])
        if rank in blamed_code or (code and _exception(directory / layout.events_file(rank)) is not None):
            failures.append(_failure(directory, host or "?", {"rank": rank, "exit_code": blamed_code.get(rank, 1)}))
    if not hosts:
        reason = "mpirun started no rank" if code else None
        return [HostEnding(host="?", code=code, reason=reason, log_tail=log_tail)]
    return [HostEnding(host=h, code=code, failures=tuple(f), log_tail=log_tail) for h, f in hosts.items()]


def _host_of(directory: Path, rank: int) -> str | None:
    """The host that ``rank`` recorded, or None without records."""
    host = _header(directory, rank).get("host")
    return host if isinstance(host, str) else None


def _clock_of(header: dict[str, Any]) -> tuple[str | None, int]:
    """The boot id of a rank's monotonic clock, and how far real time was ahead of that clock."""
    boot_id = header.get("boot_id")
    try:
        ahead_ns = int(header["clock"]["realtime_ns"]) - int(header["clock"]["monotonic_ns"])
    except (KeyError, TypeError, ValueError):
        ahead_ns = 0
    return boot_id if isinstance(boot_id, str) else None, ahead_ns


def _header(directory: Path, rank: int) -> dict[str, Any]:
    """The first line of a rank's step records; empty without one."""
    try:
        with (directory / layout.steps_file(rank)).open("rb") as file:
            header = json.loads(file.readline(TAIL_BYTES))
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plain


def _ended(directory: Path, host: str, code: int, plain: dict[str, Any]) -> HostEnding:
    failures = tuple(_failure(directory, host, item) for item in plain.get("failures", []))
    reason = plain.get("reason")
    shown = redact.text(reason[:MAX_REASON])[0] if isinstance(reason, str) else None
    return HostEnding(host=host, code=code, failures=failures, reason=shown, versions=_versions(plain.get("versions")))


def _versions(plain: object) -> dict[str, str | None]:
    """Versions of packages by name, as an agent wrote them; only packages that we record are kept."""
    if not isinstance(plain, dict):
        return {}
    versions = {name: plain[name] for name in ("python", *PACKAGES) if name in plain}
    return {
        name: text for name, text in versions.items() if text is None or (isinstance(text, str) and len(text) < 100)
    }


def _failure(directory: Path, host: str, plain: dict[str, Any]) -> RankFailure:
    return failure_of(directory, int(plain["rank"]), host, exit_code=int(plain["exit_code"]))


def failure_of(directory: Path, rank: int, host: str, *, exit_code: int) -> RankFailure:
    """The failure of ``rank`` on ``host``, with the exception that it recorded, if any."""
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
    """The last exception that a rank recorded, or None."""
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
