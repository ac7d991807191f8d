"""How the ranks of each host ended, from what agents and ranks wrote."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from allpull.observe import scratch
from allpull.observe.versions import PACKAGES
from allpull.rundir import layout, redact
from allpull.rundir.read.endings import AgentEnding, agent_ending, agent_endings, last_exception
from allpull.rundir.read.headers import rank_header
from allpull.rundir.read.lenient import log_tail
from allpull.schema.events import Raised

SETTLE_S = 5.0  # shared file systems show another host's file some seconds late
LOOK_EVERY_S = 0.2

_RAISED = re.compile(r"([\w.]*(Error|Exception)\b|terminate called|what\(\): |Fatal Python error)")
"""How the line begins in which Python, or the C++ library, says why it ends a process."""


KILLED = 128 + signal.SIGKILL
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
"""Errors that Gloo and NCCL raise in a rank whose peer has gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """One rank that failed. ``exit_code`` is negative for a signal, as in ``subprocess``.

    ``was_ended``: by whoever started it, because another one had failed; None: it may have been, if by SIGTERM.
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
    was_ended: bool | None = None

    @property
    def by_signal(self) -> bool:
        """Whether a signal ended it that was not sent because another one had failed."""
        is_ours = self.exit_code == -signal.SIGTERM if self.was_ended is None else self.was_ended
        return self.exit_code < 0 and not is_ours

    @property
    def lost_peer(self) -> bool:
        """Whether it raised because another rank had gone."""
        return self.exception is not None and any(text in self.exception for text in LOST_PEER)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnding:
    """How one host's ranks ended: the code its agent returned, and those that failed.

    ``finished`` are the ranks that had ended with exit code 0 when others failed, as far as it is known. ``reason``
    says what ended them if no rank did, and ``log_tail`` is then the end of the log. ``stopped``: the user stopped the
    job. ``versions`` are those that the ranks used there, as far as the host reported them.
    """

    host: str
    code: int
    failures: tuple[RankFailure, ...] = ()
    finished: tuple[int, ...] = ()
    reason: str | None = None
    log_tail: tuple[str, ...] = ()
    stopped: bool = False
    versions: Mapping[str, str | None] = field(default_factory=dict)


def read_host_ending(directory: Path, host: str, code: int, *, private: str = "") -> HostEnding:
    """How the ranks of ``host`` ended in run directory ``directory``.

    ``host`` is the agent's ``--name``, ``code`` the agent's exit code. An agent that was killed wrote nothing else; one
    that failed itself, at a limit of its memory say, left the reason in its log. ``private``: the folder of the job on
    that host, if it is this one: the agent writes there if the run directory takes no more.
    """
    ending = agent_ending(directory, host)
    if ending is None and scratch.is_ours(private):
        ending = agent_ending(Path(private).resolve(), host, file=scratch.ENDING)
    if ending is not None:
        return _host_ending(directory, ending, host, code)
    logs = (layout.AGENT_LOG, layout.agent_log(host), layout.torch_log(host))  # where its errors go, by launcher
    tail = next(filter(None, (log_tail(directory, log) for log in logs)), ())
    raised = next((line for line in reversed(tail) if _RAISED.match(line)), None) if code else None
    reason = None if raised is None else f"the agent of host {host} failed: {raised}"
    if reason is None and code == KILLED:
        reason = f"the agent of host {host} was ended by SIGKILL, as the kernel does when memory runs out"
    return HostEnding(host=host, code=code, reason=reason, log_tail=tail if raised else ())


def read_host_endings(directory: Path) -> list[HostEnding]:
    """How the ranks ended on every host that has written it; for jobs whose agents were not started by us.

    In the order of the job's hosts, which is that of ranks; by name if an older agent did not write the order.
    """
    return [_host_ending(directory, ending, ending.host, ending.code) for ending in agent_endings(directory)]


def settled_endings(directory: Path, hosts: int) -> list[HostEnding]:
    """What hosts wrote about their end, once all have or it is enough: file systems may show a file seconds late."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        endings = read_host_endings(directory)
        if len(endings) >= hosts or any(host.failures for host in endings) or time.monotonic() > deadline:
            return endings
        time.sleep(LOOK_EVERY_S)


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
        header = rank_header(directory, rank)
        if header is None and rank not in blamed_code:
            continue
        host = "?" if header is None else header.host
        failures = hosts.setdefault(host, [])
        if rank in blamed_code or (code and last_exception(directory, rank) is not None):
            failures.append(failure_of(directory, rank, host, exit_code=blamed_code.get(rank, 1)))
    if not hosts:
        reason = "mpirun started no rank" if code else None
        return [HostEnding(host="?", code=code, reason=reason, log_tail=log_tail)]
    return [HostEnding(host=h, code=code, failures=tuple(f), log_tail=log_tail) for h, f in hosts.items()]


def _host_ending(directory: Path, ending: AgentEnding, host: str, code: int) -> HostEnding:
    failures = (
        replace(
            failure_of(directory, rank, host, exit_code=exit_, raised=ending.raised.get(rank)),
            was_ended=ending.was_ended.get(rank, exit_ == -signal.SIGTERM),
        )
        for rank, exit_ in ending.exit_codes.items()
    )
    versions = {name: ending.versions[name] for name in ("python", *PACKAGES) if name in ending.versions}
    reason = None if ending.reason is None else redact.text(ending.reason)[0]
    return HostEnding(
        host=host, code=code, failures=tuple(failures), finished=ending.finished, reason=reason, versions=versions
    )


def failure_of(directory: Path, rank: int, host: str, *, exit_code: int, raised: Raised | None = None) -> RankFailure:
    """The failure of ``rank`` on ``host``, with the exception that it recorded, if any, or that is in ``raised``."""
    raised, header = last_exception(directory, rank) or raised, rank_header(directory, rank)
    return RankFailure(
        rank=rank,
        host=host,
        exit_code=exit_code,
        exception=None if raised is None else ": ".join(filter(None, (raised.type, raised.message))),
        hint=None if raised is None else raised.hint,
        raised_ns=None if raised is None else raised.t_ns,
        boot_id=None if header is None else header.boot_id,
        realtime_ahead_ns=0 if header is None else header.realtime_ahead_ns,
        log_tail=log_tail(directory, layout.log_file(rank)),
    )
