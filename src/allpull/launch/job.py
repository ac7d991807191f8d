"""Prepare a run directory: write the specification and the record to disk before anything starts."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from allpull.errors import BadInput
from allpull.launch import job_array
from allpull.launch.code_versions import git_state
from allpull.launch.command_record import of_program, with_command
from allpull.observe.hook_install import install_hook
from allpull.observe.versions import versions
from allpull.output_folder import check_fresh, held_folder, make_folder
from allpull.rundir import layout, redact
from allpull.rundir.job_file import SECRETS_VARIABLE, JobFile
from allpull.rundir.read.headers import USER_STARTED
from allpull.rundir.read.processes import this_process
from allpull.rundir.run_record import redacted, write_record, write_reserve
from allpull.rundir.write import private_folder, whole_file
from allpull.schema.base import tag
from allpull.schema.run import RunRecord
from allpull.schema.spec import RunSpec, to_plain
from allpull.version import __version__

RECORDED_VARIABLES = (
    "OMP_", "KMP_", "MKL_", "GOMP_", "NCCL_", "GLOO_", "TORCH", "PYTORCH", "CUDA_", "HIP_", "ROCR_", "SLURM_", "OMPI_",
    "PMI_", "PMIX_", "UCX_", "FI_", "MASTER_", "PYTHON", "LD_PRELOAD", "MALLOC_", "ATEN_", "DNNL_", "ONEDNN_",
)  # fmt: skip
"""Prefixes of variables that change how ranks run; no other environment variable is recorded."""

POINT_VARIABLE = "ALLPULL_STUDY_POINT"
"""Environment variable with the point of a study that a job measures, POINT/REPEAT; its record keeps it."""

WARNED = 128 + signal.SIGUSR1
"""The exit code of a job whose ranks stopped at a warning (``train.preemption``): as if the signal had ended it."""

PLANNED_ONLY = ("kubernetes:",)
"""Beginnings of launchers that write what another program submits; in the pods of a manifest they have no argument."""

OUTLIVING = frozenset({"script", "slurm", "kubernetes"})
"""Launchers whose jobs go on without the process that prepared or submitted them."""

WITHOUT_OUR_ENVIRONMENT = frozenset({*USER_STARTED, *OUTLIVING})
"""Launchers whose ranks others start, which find in a file what the job file masks."""

Kind = Literal["train", "run", "probe", "rehearse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A prepared job: its run directory, what runs, and its record as written.

    Each rank runs either ``module``, one of ours, or ``program``, a user's command, which the start-up hook observes.
    Under a launcher of ``headers.USER_STARTED`` the program is one process, which starts its own ranks.
    """

    directory: Path
    spec: RunSpec
    record: RunRecord
    module: str = ""
    program: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the module beyond the specification, such as the sizes that a probe measures."""
    tasks: tuple[Job, ...] = ()
    """The runs of an array, each in its own run directory below ``directory``; empty for a single run."""

    companion: tuple[str, ...] = ()
    """The command that a batch script starts beside the ranks, on the first host, with the run directory behind it."""

    secrets: str = ""
    """What the job file masks, for processes that start ranks (``job_file.SECRETS_VARIABLE``)."""

    @property
    def file(self) -> Path:
        """The job file, which every rank reads."""
        return self.directory / layout.SPEC


def prospect(
    spec: RunSpec,
    *,
    kind: Kind,
    command: Sequence[str],
    out: Path,
    module: str = "",
    program: Sequence[str] | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Job:
    """The job that ``prepare`` would create now; writes nothing."""
    now = datetime.now(UTC)
    masked, _ = redact.tree([to_plain(spec), list(program or ())])  # whoever sees the name could try secrets out
    signature = hashlib.sha256(json.dumps(masked, sort_keys=True).encode()).hexdigest()[:8]
    visible, _ = redact.text(spec.name)
    ranks = None if spec.launch.launcher in USER_STARTED else spec.launch.ranks
    name = layout.run_name(f"{now:%Y%m%dT%H%M%SZ}", visible, ranks, signature)
    record = _record(spec, name, kind=kind, command=command, created=now)
    if program is not None:
        record = of_program(record, program, os.environ)
    place = out.resolve() / name
    own_program = None if program is None else tuple(program)
    return Job(directory=place, spec=spec, record=record, module=module, program=own_program, options=options)


def prepare(
    spec: RunSpec,
    *,
    kind: Kind,
    command: Sequence[str],
    out: Path,
    module: str = "",
    program: Sequence[str] | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Job:
    """Make the run directory of a job below ``out`` and write ``run.json`` and the job file into it.

    For a Slurm array (``slurm.array``), the same for each of its runs.

    Raises:
        BadInput: the directory cannot be made or written, the array does not parse, or the launcher starts nothing.
    """
    if spec.launch.launcher.startswith(PLANNED_ONLY):
        raise BadInput(
            f"launcher {spec.launch.launcher} starts nothing: it writes a manifest",
            hint="add --dry-run, and pipe what it prints into: kubectl create -f -",
        )
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"the name of the folder {str(out)!a} is not UTF-8", hint="choose another folder for runs (--out)"
        ) from None
    prospective = prospect(spec, kind=kind, module=module, program=program, command=command, out=out, options=options)
    indices = job_array.indices(spec.slurm.array) if spec.launch.launcher == "slurm" else ()
    specs = {index: job_array.task_spec(spec, index) for index in indices}
    try:
        job = replace(prospective, directory=_fresh(out, prospective.directory.name))
        if not specs:
            return _written(job)
        return replace(job, tasks=tuple(_written(_task(job, index, specs[index])) for index in specs))
    except OSError as error:
        place = error.filename2 or error.filename or out  # of a copy, the second is what was written
        raise BadInput(
            f"cannot write a run directory in {out}: {error.strerror} ({place})",
            hint="choose another folder for runs (--out)",
        ) from error


def _task(job: Job, index: int, spec: RunSpec) -> Job:
    """The run of ``index`` of an array, not yet written."""
    visible = {**job.record.spec, "train": {**job.record.spec["train"], "seed": spec.train.seed}}
    record = job.record.model_copy(update={"seed": spec.train.seed, "spec": visible})
    return replace(job, directory=job.directory / job_array.folder(job.directory, str(index)), spec=spec, record=record)


def _written(job: Job) -> Job:
    """The job, after its run directory has been created."""
    job = replace(job, record=job.record.model_copy(update={"id": job.directory.name}))
    file = _job_file(job)
    kept = file.kept(redact.tree(file.spec)[0])
    job = replace(job, secrets=file.secrets(kept))
    private_folder(str(job.directory))
    with held_folder(job.directory) as directory:  # whoever may write to the folder around it can exchange it
        check_fresh(directory)
        for folder in layout.FOLDERS:
            private_folder(str(directory / folder))
        write_record(directory, job.record)
        kept.write(str(directory / layout.SPEC))
        if job.spec.launch.launcher in WITHOUT_OUR_ENVIRONMENT or job.spec.container.image:
            whole_file(str(directory / layout.SECRETS), job.secrets)
        if job.program is not None:
            install_hook(str(directory))
        write_reserve(directory)
    return job


def environment(spec: RunSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's processes: the user's, with the threads of a rank set.

    Each rank gets one OpenMP thread unless configured otherwise, because ranks that share cores slow each other down.
    torch's agent gives ranks the grace time to end (half a minute before torch 2.10).
    """
    threads = str(spec.launch.threads)
    return {
        **inherited,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, round(spec.launch.grace_s))),
    }


def with_secrets(job: Job, variables: Mapping[str, str]) -> dict[str, str]:
    """``variables`` for a process that starts the ranks of ``job``: with the secrets that the job file masks."""
    return {**variables, SECRETS_VARIABLE: job.secrets}


def _fresh(out: Path, name: str) -> Path:
    make_folder(out, hint="choose another folder for runs (--out)", mode=0o700)
    for attempt in range(1, 1000):
        directory = out / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return directory.resolve()
    raise BadInput(f"{out} already holds 999 runs called {name}", hint="choose another folder for runs (--out)")


def _job_file(job: Job) -> JobFile:
    spec = job.spec
    file = JobFile(
        directory=str(job.directory),
        module=job.module,
        nonce=secrets.token_hex(16),
        id=secrets.token_hex(8),
        ranks=spec.launch.ranks,
        port=spec.launch.port,
        bind=spec.launch.bind,
        interface=spec.launch.interface,
        max_restarts=spec.launch.max_restarts,
        counters=spec.observe.counters,
        counter_interval_s=spec.observe.counter_interval_s,
        budget=spec.observe.budget,
        warmup_steps=spec.observe.warmup_steps,
        options=dict(job.options),
        spec=to_plain(spec),
    )
    return file if job.program is None else with_command(file, spec, job.program)


def _record(spec: RunSpec, name: str, *, kind: Kind, command: Sequence[str], created: datetime) -> RunRecord:
    variables_set = environment(spec, os.environ)
    variables = {key: value for key, value in sorted(variables_set.items()) if key.startswith(RECORDED_VARIABLES)}
    git, in_git = git_state(Path.cwd())
    record = RunRecord(
        schema=tag("run"),
        id=name,
        name=spec.name,
        kind=kind,
        created_utc=f"{created:%Y-%m-%dT%H:%M:%SZ}",
        status="created",
        command=list(command),
        spec=to_plain(spec),
        launcher=spec.launch.launcher,
        launcher_process=None if spec.launch.launcher in OUTLIVING else this_process(),
        ranks=spec.launch.ranks,
        threads_per_rank=spec.launch.threads,
        global_batch=spec.global_batch,
        seed=spec.train.seed,
        versions={"allpull": __version__, **({} if spec.container.image else versions())},
        git=git,
        environment=variables,
        point=os.environ.get(POINT_VARIABLE),
        redacted=in_git,
    )
    return redacted(record)
