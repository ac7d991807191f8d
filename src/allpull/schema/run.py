"""``run.json``: what was requested, what ran, and how it ended."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from allpull.schema.base import Record

Status = Literal["created", "running", "completed", "failed", "cancelled"]
UNENDED: frozenset[Status] = frozenset({"created", "running"})
"""States of a run whose records still grow."""


class Exit(Record):
    """How a job ended. ``rank`` and below describe the rank that failed first, and are None if none did."""

    code: int = Field(description="exit code passed on to the user; 128 + n for signal n")
    rank: int | None = Field(None, ge=0)
    host: str | None = None
    signal: str | None = Field(None, description="name of the signal that ended the rank, such as SIGKILL")
    exception: str | None = Field(None, description="type and message of the exception that ended the rank")
    hint: str | None = Field(None, description="what to do about that exception, where it says so")
    reason: str | None = Field(None, description="in words, what ended the job where it was no rank: a time limit, say")
    ended_by: Literal["study"] | None = Field(
        None, description="what ended a job that would have gone on, because it had measured enough; None: nothing did"
    )
    log_tail: list[str] = Field(default_factory=list, max_length=200, description="last lines of its log")

    def describe(self) -> str:
        """How the job ended, for people.

        >>> Exit(code=137, rank=1, host="n1", signal="SIGKILL").describe()
        'rank 1 on n1 was ended by SIGKILL'
        >>> Exit(code=134, rank=1, host="n1", signal="SIGABRT", exception="ValueError: no").describe()
        'rank 1 on n1 was ended by SIGABRT, after ValueError: no'
        >>> Exit(code=1, rank=0, host="n1", exception="ValueError: no").describe()
        'rank 0 on n1 failed: ValueError: no'
        >>> Exit(code=1, rank=0, host="n1", exception="BadInput: no digits at data", hint="get them").describe()
        'rank 0 on n1 failed: BadInput: no digits at data; hint: get them'
        >>> Exit(code=143, reason="Slurm ended the job at its time limit").describe()
        'Slurm ended the job at its time limit'
        """
        if self.rank is None:
            return self.reason or f"the job ended with code {self.code}"
        if self.signal:
            end = f"was ended by {self.signal}" + (f", after {self.exception}" if self.exception else "")
        else:
            end = f"failed: {self.exception or f'exit code {self.code}, no Python exception recorded'}"
        more = [self.reason, f"hint: {self.hint}" if self.hint else None]
        return "; ".join([f"rank {self.rank} on {self.host} {end}", *(text for text in more if text)])


class GitState(Record):
    """The working tree that the job was started from."""

    commit: str
    dirty: bool
    remote: str | None = Field(None, description="URL of origin, without credentials")


class LauncherProcess(Record):
    """A process of one machine, told apart from all others that ever had its number."""

    pid: int = Field(ge=1)
    start_ticks: int = Field(description="when it was started, in clock ticks since boot")
    boot_id: str = Field(max_length=100)
    pid_namespace: int = Field(description="inode of the namespace in which it has this pid")


class RunRecord(Record):
    """One job. Written before it starts with status ``created``; status, hosts and exit follow."""

    schema_: str = Field(alias="schema")
    id: str = Field(description="name of the run directory")
    name: str
    kind: Literal["train", "run", "probe", "rehearse"]
    created_utc: str = Field(description="ISO 8601, UTC")
    ended_utc: str | None = None
    status: Status
    command: list[str] = Field(description="the user's command line, secrets redacted")
    spec: dict[str, Any] = Field(description="the resolved specification: schema.spec.RunSpec as JSON")
    launcher: str
    job: str | None = Field(
        None,
        max_length=200,
        description="number of the job in Slurm's queue, NUMBER_INDEX for one run of an array; followed by a semicolon "
        "and the cluster on a federation",
    )
    launcher_process: LauncherProcess | None = Field(
        None,
        description="the process of allpull that runs the job and closes this record; None: the job outlives that "
        "process, or it ran outside Linux",
    )
    ranks: int = Field(ge=1, le=1_000_000)
    hosts: list[str] = Field(default_factory=list)
    threads_per_rank: int | None = Field(None, ge=1)
    global_batch: int | None = Field(None, ge=1, description="samples of one step over all ranks")
    seed: int | None = None
    versions: dict[str, str | None] = Field(description="allpull, python, torch and others; None: not installed")
    git: GitState | None = None
    script_sha256: str | None = Field(
        None, max_length=64, description="of the user's script when the job was prepared; None: not a file, or not read"
    )
    environment: dict[str, str] = Field(default_factory=dict, description="variables that affect how ranks run")
    point: str | None = Field(
        None, max_length=100, description="of a study: POINT/REPEAT, the id of the point and the number of the repeat"
    )
    redacted: int = Field(0, ge=0, description="secrets that were replaced before writing")
    exit: Exit | None = None
    gaps: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="sentences: what was missing from third-party traces imported as this run",
    )
