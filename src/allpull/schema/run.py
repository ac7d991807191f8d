"""``run.json``: what was asked for, what ran, and how it ended."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from allpull.schema.base import Record

Status = Literal["created", "running", "completed", "failed", "cancelled"]


class Exit(Record):
    """How a job ended. ``rank`` and below speak of the rank that failed first, and are None where none did."""

    code: int = Field(description="exit code passed on to the user; 128 + n for signal n")
    rank: int | None = Field(None, ge=0)
    host: str | None = None
    signal: str | None = Field(None, description="name of the signal that ended the rank, such as SIGKILL")
    exception: str | None = Field(None, description="type and message of the exception that ended the rank")
    hint: str | None = Field(None, description="what to do about that exception, where it says so")
    reason: str | None = Field(None, description="in words, what ended the job where it was no rank: a time limit, say")
    log_tail: list[str] = Field(default_factory=list, max_length=200, description="last lines of its log")


class GitState(Record):
    """The working tree that the job was started from."""

    commit: str
    dirty: bool
    remote: str | None = Field(None, description="URL of origin, without credentials")


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
        description="number of the job in Slurm's queue, NUMBER_INDEX for one run of an array; behind a semicolon, "
        "the cluster of a federation",
    )
    ranks: int = Field(ge=1, le=1_000_000)
    hosts: list[str] = Field(default_factory=list)
    threads_per_rank: int | None = Field(None, ge=1)
    global_batch: int | None = Field(None, ge=1, description="samples of one step over all ranks")
    seed: int | None = None
    versions: dict[str, str | None] = Field(description="allpull, python, torch and others; None: not installed")
    git: GitState | None = None
    environment: dict[str, str] = Field(default_factory=dict, description="variables that change how ranks run")
    redacted: int = Field(0, ge=0, description="secrets that were replaced before writing")
    exit: Exit | None = None
    gaps: list[str] = Field(
        default_factory=list,
        max_length=1000,
        description="in words, what could not be found out when traces of others were made into this run",
    )
