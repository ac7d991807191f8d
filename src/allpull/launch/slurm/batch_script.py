"""The batch script of a Slurm job, as text. Pure: nothing is read, started or written here."""

from __future__ import annotations

import re
import shlex
import signal
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from allpull.errors import BadInput
from allpull.launch import container, job_array
from allpull.launch.job import WARNED, Job, environment
from allpull.launch.ports import FIRST_PORT, PORTS
from allpull.launch.shell_script import made_for, python_of
from allpull.rundir import layout
from allpull.schema.spec import RunSpec

TERMINATED = 128 + signal.SIGTERM

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~-]*")


def sbatch_script(job: Job) -> str:
    """The batch script of ``job``: options of sbatch, the user's own lines, and one ``srun`` with one agent per host.

    If the job may be requeued (``slurm.requeues``), the records of an attempt move into ``attempts/<number>`` of the
    run directory before the next attempt, ALLPULL_RESUME is set, and the trainer resumes from its newest checkpoint.
    Every run of an array (``slurm.array``) has this script, and finds its own directory below that of ``job``.

    Raises:
        BadInput: a path or option cannot be written into such a script.
    """
    spec = job.spec
    for text in _texts(job):
        if any(unicodedata.category(character) in {"Cc", "Zl", "Zp", "Cs"} for character in text):
            raise BadInput(
                f"{text!r} cannot be written into a job script: it has a line break or control character in it",
                hint="choose a folder for runs without one (--out), or change the option",
            )
    parts = [
        ["#!/bin/bash", made_for(job), *(f"#SBATCH {line}" for line in directives(job))],
        ["set -eo pipefail  # without -u: modules and activate scripts read unset variables"],
        [f"module load {shlex.quote(module)}" for module in spec.slurm.modules],
        list(spec.slurm.prologue),
        [f"export {name}={shlex.quote(value)}" for name, value in sorted(_variables(spec).items())],
        [_run(job), f"python=({shlex.join(python_of(job))})", *_claim(spec)],
        [*_next_attempt()] if spec.slurm.requeues else [],
        [*_meeting(spec)],
        [*_launch(job)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def directives(job: Job) -> Iterator[str]:
    """The options behind ``#SBATCH``, in order: only what the user set, and what the job needs."""
    spec, slurm = job.spec, job.spec.slurm
    yield _option("job-name", spec.name)
    for name in ("account", "partition", "qos", "reservation", "constraint"):
        if value := getattr(slurm, name):
            yield _option(name, value)
    yield _option("nodes", str(spec.launch.hosts))
    yield _option("ntasks-per-node", "1")
    yield _option("cpus-per-task", str(cpus_of_host(spec)))
    for name, value in (
        ("gpus-per-node", slurm.gpus_per_node),
        ("mem", slurm.mem),
        ("time", slurm.time),
        ("switches", slurm.switches),
        ("mail-user", slurm.mail),
        ("mail-type", "END,FAIL" if slurm.mail else ""),
    ):
        if value:
            yield _option(name, value)
    if slurm.exclusive:
        yield "--exclusive"
    if slurm.requeues:
        yield "--requeue"
        yield _option("signal", f"B:USR1@{slurm.signal_s}")
    else:
        yield "--no-requeue"
    if job_array.indices(slurm.array):
        yield _option("array", slurm.array)
    yield _option("open-mode", "append")
    yield _option("output", _log_path(job))
    yield from slurm.lines


def cpus_of_host(spec: RunSpec) -> int:
    """CPUs that all ranks of one host need together: for Slurm, a host's agent is one task."""
    return spec.launch.ranks // spec.launch.hosts * (spec.slurm.cpus_per_rank or spec.launch.threads)


def srun_options(spec: RunSpec) -> list[str]:
    """Options of the one ``srun``: one agent per host, with the CPUs of all its ranks; if one fails, all are ended."""
    hosts = spec.launch.hosts
    return [
        *(f"--nodes={hosts}", f"--ntasks={hosts}", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={cpus_of_host(spec)}", "--kill-on-bad-exit=1"),
    ]


def _texts(job: Job) -> Iterator[str]:
    slurm, box = job.spec.slurm, job.spec.container
    yield from (str(job.directory), container.python(box), box.image, *box.binds, *box.options)
    yield from (slurm.master, *slurm.modules, *slurm.prologue, *job.companion, *directives(job))


def _option(name: str, value: str) -> str:
    """One option as sbatch reads it: in double quotes, and within them a backslash protects the next character."""
    if _PLAIN.fullmatch(value) and value:
        return f"--{name}={value}"
    return f'--{name}="' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _log_path(job: Job) -> str:
    """The path of Slurm's log, with every % doubled, which Slurm would replace; ``%a`` is the index in an array.

    Raises:
        BadInput: it has a backslash in it, which switches that replacement off, and which some versions drop.
    """
    path = str(job.directory)
    if "\\" in path:
        raise BadInput(
            f"Slurm cannot write to {path}: it has a backslash in it", hint="choose another folder for runs (--out)"
        )
    whole = path.replace("%", "%%")
    return f"{Path(whole) / job_array.folder(Path(whole), '%a') if job.spec.slurm.array else whole}/{layout.SLURM_LOG}"


def _variables(spec: RunSpec) -> dict[str, str]:
    """What the script exports. If the job may be requeued, ranks have until the time limit to write a checkpoint."""
    usual = environment(spec, {})
    if not spec.slurm.requeues:
        return usual
    patience_s = max(spec.launch.grace_s, spec.slurm.signal_s)
    return {**usual, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(round(patience_s)), "ALLPULL_SAVE_ON_TERM": "1"}


def _run(job: Job) -> str:
    """The line that sets the run directory."""
    if not job.spec.slurm.array:
        return f"run={shlex.quote(str(job.directory))}"
    return f'run={shlex.quote(str(job.directory / job_array.folder(job.directory, "")))}"$SLURM_ARRAY_TASK_ID"'


def _claim(spec: RunSpec) -> Iterator[str]:
    """Claim the run directory for this job; only a requeue of the same job may use it again."""
    yield f'if [ -e "$run/{layout.QUEUE}" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -eq 0 ]; then'
    yield '  echo "$run has been run already: prepare another" >&2'
    yield "  exit 2"
    yield "fi"
    yield f'echo "{_number(spec)}" > "$run/{layout.QUEUE}"'


def _number(spec: RunSpec) -> str:
    """The job number as a shell expression; in an array, SLURM_JOB_ID of one run may be that of the whole array."""
    return "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if spec.slurm.array else "$SLURM_JOB_ID"


def _next_attempt() -> Iterator[str]:
    yield "# Records are never appended to: those of the attempt before move aside; its newest checkpoint is taken up."
    yield 'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then'
    yield "  attempts=0  # not Slurm's count: ranks may have been started again in place"
    yield f'  while [ -e "$run/{layout.ATTEMPTS}/$attempts" ]; do attempts=$((attempts + 1)); done'
    yield f'  before="$run/{layout.ATTEMPTS}/$attempts"'
    yield f'  mkdir -p "$before/{layout.JOB}"'
    yield f"  for folder in {' '.join(layout.ATTEMPT_FOLDERS)}; do"
    yield '    mv "$run/$folder" "$before/$folder"'
    yield '    mkdir "$run/$folder"'
    yield "  done"
    yield "  export ALLPULL_RESUME=1 ALLPULL_ATTEMPTS=$((attempts + 1))"
    yield "fi"


def _meeting(spec: RunSpec) -> Iterator[str]:
    """The rendezvous of the hosts; one host needs none."""
    if spec.launch.hosts == 1:
        return
    first = '$("${python[@]}" -m allpull.launch.hostlist "$SLURM_JOB_NODELIST" --first)'
    around = [shlex.quote(part) if part else "" for part in spec.slurm.master.split("{host}")]
    if len(around) > 1:
        yield f"host={first}"
    yield "master=" + '"$host"'.join(around)
    port = spec.launch.port or f"$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
    yield f"port={port}"


def _launch(job: Job) -> Iterator[str]:
    spec, (begin, end) = job.spec, _companion(job)
    agent = f'"${{python[@]}}" -m allpull.observe.agent "$run/{layout.SPEC}" --from-slurm'
    if spec.launch.hosts > 1:
        agent += ' --master "$master" --port "$port"'
    srun = f"{shlex.join(['srun', *srun_options(spec)])} \\\n  {agent}"
    close = '"${python[@]}" -m allpull.launch.slurm.close_run "$run" "$code" || true  # its launcher may have ended'
    if not spec.slurm.requeues:
        yield "code=0"
        yield from begin
        yield f"{srun} || code=$?"
        yield from end
        yield close
        yield 'exit "$code"'
        return
    number = _number(spec)
    yield f"# Slurm sends USR1 to this shell {spec.slurm.signal_s} s before the time limit, or up to a minute earlier,"
    yield "# and TERM to the ranks where it preempts the job. Told of either, they write a checkpoint and stop."
    yield "warned="
    yield from begin
    yield f"trap 'warned=yes; scancel --signal=USR1 \"{number}\"' USR1"
    yield f"{srun} &"
    yield "step=$!"
    yield "code=0"
    yield 'wait "$step" || code=$?'
    yield 'if [ "$warned" ]; then  # it was that which ended the wait'
    yield "  code=0"
    yield '  wait "$step" || code=$?'
    yield "fi"
    yield from end
    yield f'if [ "$code" -eq {WARNED} ] || [ "$code" -eq {TERMINATED} ]; then'
    yield f'  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {spec.slurm.requeues} ]; then'
    yield f'    scontrol requeue "{number}" && exit "$code"'
    yield "  else"
    yield f'    echo "slurm.requeues = {spec.slurm.requeues} are used up" >&2'
    yield "  fi"
    yield "fi"
    yield close
    yield 'exit "$code"'


def _companion(job: Job) -> tuple[list[str], list[str]]:
    """The lines before and behind ``srun`` of a command beside it, which may end the job: that is then no failure."""
    if not job.companion:
        return [], []
    words = shlex.join(job.companion)
    return [f'{words} "$run" &', "companion=$!"], [
        'kill "$companion" 2> /dev/null || true  # it may have ended',
        f'if [ "$code" -eq {TERMINATED} ] && [ -e "$run/{layout.ENOUGH}" ]; then code=0; fi',
    ]
