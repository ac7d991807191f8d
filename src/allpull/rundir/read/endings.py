"""Read how the ranks of each host ended: what its agent wrote, and the exceptions that ranks recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from allpull.rundir import layout
from allpull.rundir.read.lenient import file_names, json_object, last_records
from allpull.schema.events import Raised

MAX_REASON = 500  # characters
MAX_VERSION = 100  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnding:
    """What the agent of ``host`` wrote about its end.

    ``index`` is the host's place in the job; ``exit_codes`` those of its failed ranks, by rank; ``was_ended``: whether
    the agent ended them, as far as it knows; ``raised`` the
    exceptions of ranks that could not record them; ``finished`` are ranks that had ended with exit code 0 when others
    failed; ``reason`` says what ended them if no rank did; ``versions`` are those of packages by name, None where one
    is not installed.
    """

    host: str
    index: int
    code: int
    exit_codes: Mapping[int, int]
    was_ended: Mapping[int, bool]
    raised: Mapping[int, Raised]
    finished: tuple[int, ...]
    reason: str | None
    versions: Mapping[str, str | None]


def agent_ending(root: Path, host: str, *, file: str = "") -> AgentEnding | None:
    """What the agent of ``host`` wrote in the resolved run directory ``root``; None: nothing that makes sense.

    ``file``: its name in ``root``, if that is another folder.
    """
    return _agent_ending(json_object(root, file or layout.ended_file(host)))


def agent_endings(root: Path) -> list[AgentEnding]:
    """What the agents of all hosts wrote, in the order of the job's hosts; by file name where they wrote no index."""
    names = file_names(root, layout.ENDED, ".json")
    endings = (_agent_ending(json_object(root, f"{layout.ENDED}/{name}")) for name in names)
    return sorted((ending for ending in endings if ending is not None), key=lambda ending: ending.index)


def has_ended(root: Path, rank: int) -> bool:
    """Whether ``rank`` of the resolved run directory ``root`` recorded its end, regular or by an exception."""
    return shows_end(last_records(root, layout.events_file(rank)))


def ended_ns(root: Path, rank: int) -> int | None:
    """When ``rank`` ended without an exception, on its host's monotonic clock; None: it recorded no such end."""
    ends = (event.get("t_ns") for event in last_records(root, layout.events_file(rank)) if event.get("kind") == "end")
    return next((moment for moment in ends if type(moment) is int), None)


def shows_end(events: list[dict[str, Any]]) -> bool:
    """Whether the last ``events`` of a rank have its end, regular or by an exception."""
    return any(event.get("kind") in {"end", "exception"} for event in events)


def last_exception(root: Path, rank: int) -> Raised | None:
    """The last exception that ``rank`` of the resolved run directory ``root`` recorded, or None."""
    for event in reversed(last_records(root, layout.events_file(rank))):
        if event.get("kind") == "exception" and (raised := _raised(event)) is not None:
            return raised
    return None


def _raised(event: object) -> Raised | None:
    try:
        return Raised.model_validate(event, strict=True)
    except ValidationError:
        return None


def _agent_ending(fields: dict[str, Any]) -> AgentEnding | None:
    host, index, code, reason = (fields.get(name) for name in ("host", "index", "code", "reason"))
    if not isinstance(host, str) or type(code) is not int:
        return None
    failures = _failures(fields.get("failures"))
    return AgentEnding(
        host=host[:255],
        index=index if type(index) is int else 0,
        code=code,
        exit_codes={failure["rank"]: failure["exit_code"] for failure in failures},
        was_ended={one["rank"]: ended for one in failures if isinstance(ended := one.get("was_ended"), bool)},
        raised={failure["rank"]: raised for failure in failures if (raised := _raised(failure.get("raised")))},
        finished=_ranks(fields.get("finished")),
        reason=reason[:MAX_REASON] if isinstance(reason, str) else None,
        versions=_versions(fields.get("versions")),
    )


def _failures(failures: object) -> list[dict[str, Any]]:
    listed = [failure for failure in failures if isinstance(failure, dict)] if isinstance(failures, list) else []
    return [one for one in listed if type(one.get("rank")) is int and type(one.get("exit_code")) is int]


def _ranks(ranks: object) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if type(rank) is int and rank >= 0) if isinstance(ranks, list) else ()


def _versions(versions: object) -> dict[str, str | None]:
    if not isinstance(versions, dict):
        return {}
    return {
        name: version
        for name, version in versions.items()
        if version is None or (isinstance(version, str) and len(version) < MAX_VERSION)
    }
