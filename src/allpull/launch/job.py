"""Prepare a run directory: what was asked for stands on disk before anything starts."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import allpull
from allpull.errors import BadInput
from allpull.rundir import layout, redact
from allpull.rundir.write import private_folder, whole_json
from allpull.schema.base import tag
from allpull.schema.run import GitState, RunRecord
from allpull.schema.spec import RunSpec, to_plain

RECORDED_PACKAGES = ("torch", "numpy", "polars", "pydantic", "psutil")
RECORDED_VARIABLES = (
    "OMP_", "KMP_", "MKL_", "GOMP_", "NCCL_", "GLOO_", "TORCH", "PYTORCH", "CUDA_", "HIP_", "ROCR_", "SLURM_", "OMPI_",
    "PMI_", "PMIX_", "UCX_", "FI_", "MASTER_", "PYTHON", "LD_PRELOAD", "MALLOC_", "ATEN_", "DNNL_", "ONEDNN_",
)  # fmt: skip
"""Prefixes of variables that change how ranks run; the rest of the environment is nobody's business."""


Kind = Literal["train", "run", "probe", "rehearse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prepared job: its run directory, what each rank runs, and its record as written."""

    directory: Path
    spec: RunSpec
    record: RunRecord
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the module is asked beyond the specification, such as the sizes that a probe measures."""

    @property
    def file(self) -> Path:
        """The job file, which every rank reads."""
        return self.directory / layout.SPEC


def prospect(
    spec: RunSpec,
    *,
    kind: Kind,
    module: str,
    command: Sequence[str],
    out: Path,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Job:
    """The job that ``prepare`` would make now; nothing is written."""
    now = datetime.now(UTC)
    signature = hashlib.sha256(json.dumps(to_plain(spec), sort_keys=True).encode()).hexdigest()[:8]
    shown, _ = redact.text(spec.name)
    name = layout.run_name(f"{now:%Y%m%dT%H%M%SZ}", shown, spec.launch.ranks, signature)
    record = _record(spec, name, kind=kind, command=command, created=now)
    return Job(directory=out.resolve() / name, spec=spec, record=record, module=module, options=options)


def prepare(
    spec: RunSpec,
    *,
    kind: Kind,
    module: str,
    command: Sequence[str],
    out: Path,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Job:
    """Make the run directory of a job below ``out`` and write ``run.json`` and the job file into it.

    Raises:
        BadInput: the directory cannot be made or written.
    """
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"the name of the folder {str(out)!a} is not UTF-8", hint="give another place with --out"
        ) from None
    asked = prospect(spec, kind=kind, module=module, command=command, out=out, options=options)
    try:
        directory = _fresh(out, asked.directory.name)
        for folder in layout.FOLDERS:
            private_folder(str(directory / folder))
        record = asked.record.model_copy(update={"id": directory.name})
        job = replace(asked, directory=directory, record=record)
        write_record(directory, record)
        whole_json(str(job.file), _job_file(job))
    except OSError as error:
        place = error.filename or out
        raise BadInput(
            f"cannot write a run directory in {out}: {error.strerror} ({place})", hint="give another place with --out"
        ) from error
    return job


def write_record(directory: Path, record: RunRecord) -> None:
    """Write ``run.json`` all at once.

    Raises:
        OSError: the disk is full, say; an older record is then untouched.
    """
    whole_json(str(directory / layout.RUN_JSON), record.model_dump(mode="json", by_alias=True))


def environment(spec: RunSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's processes: the user's, with the threads of a rank set.

    One OpenMP thread a rank unless told otherwise, because ranks that share cores disturb each other.
    """
    threads = str(spec.launch.threads)
    ours = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    return {**inherited, **ours, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, round(spec.launch.grace_s)))}


def seal(job: Job) -> None:
    """Take what only the running job needed, its nonce and unmasked options, out of the job file.

    Raises:
        OSError: it cannot be rewritten.
    """
    kept = {key: value for key, value in _job_file(job).items() if key != "nonce"}
    whole_json(str(job.file), {**kept, "spec": job.record.spec})


def _fresh(out: Path, name: str) -> Path:
    private_folder(str(out))
    for attempt in range(1, 1000):
        directory = out / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return directory.resolve()
    raise BadInput(f"{out} already holds 999 runs called {name}", hint="give another place with --out")


def _job_file(job: Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "directory": str(job.directory),
        "module": job.module,
        "nonce": secrets.token_hex(16),
        "ranks": spec.launch.ranks,
        "port": spec.launch.port,
        "bind": spec.launch.bind,
        "interface": spec.launch.interface,
        "max_restarts": spec.launch.max_restarts,
        "counters": spec.observe.counters,
        "counter_interval_s": spec.observe.counter_interval_s,
        "budget": spec.observe.budget,
        "warmup_steps": spec.observe.warmup_steps,
        "options": dict(job.options),
        "spec": to_plain(spec),
    }


def _record(spec: RunSpec, name: str, *, kind: Kind, command: Sequence[str], created: datetime) -> RunRecord:
    clean_command, in_command = redact.arguments(command)
    ours = environment(spec, os.environ)
    variables = {key: value for key, value in sorted(ours.items()) if key.startswith(RECORDED_VARIABLES)}
    clean_variables, in_variables = redact.mapping(variables)
    clean_spec, in_spec = _redact_tree(to_plain(spec))
    git, in_git = git_state(Path.cwd())
    return RunRecord(
        schema=tag("run"),
        id=name,
        name=redact.text(spec.name)[0],
        kind=kind,
        created_utc=f"{created:%Y-%m-%dT%H:%M:%SZ}",
        status="created",
        command=clean_command,
        spec=clean_spec,
        launcher=spec.launch.launcher,
        ranks=spec.launch.ranks,
        threads_per_rank=spec.launch.threads,
        global_batch=spec.global_batch,
        seed=spec.train.seed,
        versions={"allpull": allpull.__version__, "python": sys.version.split()[0], **package_versions()},
        git=git,
        environment=clean_variables,
        redacted=in_command + in_variables + in_spec + in_git,
    )


def _redact_tree(tree: dict[str, Any]) -> tuple[dict[str, Any], int]:
    clean: dict[str, Any] = {}
    count = 0
    for key, value in tree.items():
        found = 0
        if isinstance(value, dict):
            clean[key], found = _redact_tree(value)
        elif isinstance(value, str):
            clean[key], found = redact.text(value)
        elif isinstance(value, tuple):
            masked = [redact.text(item) for item in value]
            clean[key], found = [item for item, _ in masked], sum(count for _, count in masked)
        else:
            clean[key] = value
        count += found
    return clean, count


def package_versions() -> dict[str, str | None]:
    """Versions of the packages that a result may depend on, without importing them; None: not installed."""
    found: dict[str, str | None] = {}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def git_state(folder: Path) -> tuple[GitState | None, int]:
    """Commit, dirtiness and remote of the working tree around ``folder``, and how many secrets were masked."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, 0
    remote, masked = redact.text(_git(folder, "remote", "get-url", "origin") or "")
    dirty = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    return GitState(commit=commit, dirty=dirty, remote=remote or None), masked


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
