"""From the final state of a Slurm job, and what its hosts wrote, to how each host ended. Pure.

Leaving the queue proves nothing: only a host that wrote how its ranks ended has ended well. If Slurm ended the job, its
ranks are victims, whatever error they report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from allpull.launch.host_endings import HostEnding

LASTING = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED"}
    | {"TIMEOUT"}
)
"""States that a job does not leave."""

ENDED_BY_SLURM = {
    "BOOT_FAIL": "a host of the job did not start",
    "CANCELLED": "the job was cancelled, by scancel or an administrator",
    "DEADLINE": "Slurm ended the job at its deadline",
    "NODE_FAIL": "a host of the job failed",
    "PREEMPTED": "the job was preempted by another",
    "REVOKED": "the job was revoked: another cluster took it",
    "TIMEOUT": "Slurm ended the job at its time limit",
}
REMEDIES = {
    "NODE_FAIL": "slurm.requeues = 1 would start it again, from its checkpoint if it saves one",
    "PREEMPTED": "slurm.requeues = 1 would start it again, from its checkpoint if it saves one",
    "TIMEOUT": "slurm.time is that limit; slurm.requeues would start it again, from its checkpoint if it saves one",
}
STUCK = {
    "BadConstraints": "no host has what slurm.constraint asks for",
    "JobHeldAdmin": "held: only an administrator can release it",
    "JobHeldUser": "held: scontrol release lets it go",
    "PartitionConfig": "its partition has no hosts like the requested ones",
    "PartitionNodeLimit": "launch.hosts is outside of what its partition gives, or hosts are down",
    "PartitionTimeLimit": "slurm.time is longer than its partition allows",
}
"""Reasons why a job waits until somebody intervenes, explained (squeue(1), job reason codes)."""

_STATE = re.compile(r"^ +JobState=([A-Z_]+) Reason=(.*?)(?: Dependency=.*)?$", re.MULTILINE)
_CODES = re.compile(r"^ +Requeue=.* Restarts=([0-9]+) .*ExitCode=([0-9]+):([0-9]+)$", re.MULTILINE)
_HOSTS = re.compile(r"^ +NodeList=(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What Slurm knows about a job. ``exit_code`` and ``signal`` are its script's; ``hosts`` is a host list."""

    state: str
    reason: str = ""
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    hosts: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.state in LASTING


def from_scontrol(text: str) -> JobFacts | None:
    """What ``scontrol show job`` printed, or None for other text.

    Fields are matched at the start of their lines, because the name and the paths of a job may contain any text.
    """
    state, codes, hosts = _STATE.search(text), _CODES.search(text), _HOSTS.search(text)
    if state is None:
        return None
    return JobFacts(
        state=state.group(1),
        reason="" if state.group(2) in ("", "None") else state.group(2),
        restarts=int(codes.group(1)) if codes else 0,
        exit_code=int(codes.group(2)) if codes else 0,
        signal=int(codes.group(3)) if codes else 0,
        hosts=hosts.group(1) if hosts and hosts.group(1) != "(null)" else "",
    )


def from_sacct(text: str) -> JobFacts | None:
    """What ``sacct --noheader --parsable2 --format=State,ExitCode`` printed for one job, or None.

    >>> from_sacct("CANCELLED by 1000|0:15")
    JobFacts(state='CANCELLED', reason='', exit_code=0, signal=15, restarts=0, hosts='')
    """
    match = re.match(r"([A-Z_]+)[^|\n]*\|([0-9]+):([0-9]+)\s*$", text)
    if match is None:
        return None
    return JobFacts(state=match.group(1), exit_code=int(match.group(2)), signal=int(match.group(3)))


def describe_state(job: str, facts: JobFacts) -> str:
    """The state of a job, in one line.

    >>> describe_state("12", JobFacts(state="PENDING", reason="Resources"))
    'Slurm job 12: pending (Resources)'
    >>> describe_state("12", JobFacts(state="PENDING", reason="PartitionTimeLimit"))
    'Slurm job 12: pending (PartitionTimeLimit: slurm.time is longer than its partition allows)'
    """
    on_hosts = f" on {facts.hosts}" if facts.state == "RUNNING" and facts.hosts else ""
    reason = f" ({': '.join(filter(None, (facts.reason, STUCK.get(facts.reason))))})" if facts.reason else ""
    attempt = f", attempt {facts.restarts + 1}" if facts.restarts else ""
    return f"Slurm job {job}: {facts.state.lower().replace('_', ' ')}{on_hosts}{reason}{attempt}"


def decide_endings(
    facts: JobFacts, endings: Sequence[HostEnding], *, hosts: int, log_tail: tuple[str, ...] = ()
) -> list[HostEnding]:
    """How each host ended; ``endings`` are those that hosts wrote, ``hosts`` is the number of hosts.

    ``log_tail`` is the end of the job's log, for the case that no rank says what happened.
    """
    code = next((host.code for host in endings if host.code), 0) or facts.exit_code
    code = code or (128 + facts.signal if facts.signal else 1)
    if facts.state in ENDED_BY_SLURM:
        reason = ": ".join(filter(None, (ENDED_BY_SLURM[facts.state], REMEDIES.get(facts.state))))
        reported = endings or [HostEnding(host=facts.hosts or "?", code=code)]
        return [replace(host, code=code, failures=(), reason=reason) for host in reported]
    failed = [host for host in endings if host.failures]
    memory = "Slurm says that the job ran out of memory (slurm.mem)" if facts.state == "OUT_OF_MEMORY" else None
    if failed:
        return [replace(host, reason=memory) for host in endings]
    if len(endings) == hosts and memory is None:
        return [replace(h, log_tail=log_tail) for h in endings]
    silent = f"{hosts - len(endings)} of {hosts} host{'s' * (hosts != 1)} did not report how their ranks ended"
    ended = f"Slurm says {facts.state}" + (f" with code {facts.exit_code}" if facts.exit_code else "")
    own_reason = next((f"{host.reason}; " for host in endings if host.reason), "")
    question = "" if endings else "; does every host see the run directory?"
    reason = memory or f"{own_reason}{ended}, but {silent}{question}"
    reported = endings or [HostEnding(host=facts.hosts or "?", code=code)]
    return [replace(host, code=code, reason=reason, log_tail=log_tail) for host in reported]
