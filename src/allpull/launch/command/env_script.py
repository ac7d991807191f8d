"""The lines that `allpull env` prints for a script that cannot be wrapped, and closing the run when it ends.

The lines set the hook's variables, so that everything the script starts is observed, on other hosts too. If the shell
can, they also close the run when the script ends; a run that was not closed can still be read.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from allpull.errors import BadInput, UnknownName
from allpull.launch.command.hook_environment import hook_variables
from allpull.launch.command.missing_ranks import ProcessWatch
from allpull.launch.command.wrapped import failures_of
from allpull.launch.command_record import digest_of
from allpull.launch.host_endings import HostEnding
from allpull.launch.job import Job
from allpull.launch.outcome import exit_of
from allpull.observe.hook_install import BINDS, CARRIED, MPI_LIST
from allpull.rundir import layout, redact, safe_open
from allpull.rundir.job_file import JOB_VARIABLE
from allpull.rundir.read.headers import SCRIPT, with_recorded_ranks
from allpull.rundir.run_record import read_record, write_record, write_script
from allpull.rundir.tidy import close_directory
from allpull.schema.run import RunRecord

LAUNCHER = SCRIPT
RUN_VARIABLE = "ALLPULL_RUN"
COMMAND_VARIABLE, JOBS_VARIABLE = "ALLPULL_COMMAND", "ALLPULL_JOBS"
"""What a trap tells of bash: the command that it was at, and its running jobs."""
ENDED = 128 + signal.SIGTERM  # which signal it was, no trap knows; this is what queues send
SHOWN = 100  # characters of a command
NO_PID = -1  # the process of the script is not known


def check_shell(shell: str) -> None:
    """Check that ``lines`` supports this shell.

    Raises:
        UnknownName: it does not.
    """
    if shell not in _EXPORTS:
        raise UnknownName("shell", shell, _EXPORTS, hint="zsh and bash read the lines of sh")


def open_run(job: Job, script_lines: str) -> None:
    """Mark the prepared ``job`` as running, and keep ``script_lines``, the lines that its script evaluates.

    Raises:
        OSError: its record cannot be written.
    """
    write_script(job.directory, script_lines + "\n")
    write_record(job.directory, job.record.model_copy(update={"status": "running"}))


def lines(job: Job, shell: str, environ: Mapping[str, str]) -> str:
    """The lines that the script of ``job`` evaluates; ``environ`` is the environment now.

    Lines made elsewhere, such as on a login node, keep the PYTHONPATH that the script has when it evaluates them.
    """
    variables = {**hook_variables(job, unobserved(environ)), RUN_VARIABLE: str(job.directory)}
    exports = {name: _EXPORTS[shell](name, value) for name, value in variables.items()}
    if shell != "sh":
        return "\n".join(exports.values())
    current, hook = shlex.quote(environ.get("PYTHONPATH", "")), shlex.quote(str(job.directory / layout.HOOK))
    exports["PYTHONPATH"] = _PATH.format(now=current, same=exports["PYTHONPATH"], hook=hook)
    return "\n".join([*exports.values(), _finish()])


def _finish() -> str:
    python = shlex.quote(sys.executable)
    return _FINISH.format(python=python, traps=layout.TRAPS, command=COMMAND_VARIABLE, jobs=JOBS_VARIABLE)


def unobserved(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without what the lines of an earlier run added, so that a script may evaluate lines twice."""
    clean = dict(environ)
    job_file = clean.pop(JOB_VARIABLE, "")
    if not job_file:
        return clean
    run = os.path.dirname(os.path.dirname(job_file))  # noqa: PTH120  text as it was put there, not a path of ours
    added = {run, f"{run}/{layout.HOOK}", *CARRIED}
    for name, sign in (("PYTHONPATH", os.pathsep), (MPI_LIST, ";"), *((name, ",") for name in BINDS)):
        if name in clean:
            clean[name] = sign.join(part for part in clean[name].split(sign) if part not in added)
    return clean


def interrupted_command(environ: Mapping[str, str]) -> str | None:
    """The command in the middle of which a signal ended the script, as its trap saw it; None: none did.

    bash's exit code is then that of the command before. Only the jobs tell: those in the background end in ``&``, and
    one in the foreground is no job once the script is past it. ``wait`` ends when no job runs.

    >>> interrupted_command({COMMAND_VARIABLE: "srun x", JOBS_VARIABLE: "[1]+  Running  top &\\n[2]  Running  srun x"})
    'srun x'
    >>> interrupted_command({COMMAND_VARIABLE: "wait", JOBS_VARIABLE: "[1]+  Running   srun x &"})
    'wait'
    >>> interrupted_command({COMMAND_VARIABLE: "srun x", JOBS_VARIABLE: "[1]+  Running   top &  (wd: /tmp)"})
    """
    command, jobs = environ.get(COMMAND_VARIABLE, ""), environ.get(JOBS_VARIABLE, "").strip()
    each = (re.sub(r"\s*\(wd: .*\)$", "", job) for job in re.split(r"\n(?=\[\d+\])", jobs))  # begun in another folder
    in_foreground = [job for job in each if job and not job.endswith("&")]
    return command if in_foreground or (jobs and command.strip() == "wait") else None


def close_run(directory: Path, code: int, *, interrupted: str | None = None) -> RunRecord:
    """Close the run in ``directory``, whose script ended with ``code``; a closed run stays unchanged.

    ``interrupted``: the command in the middle of which a signal ended the script, whatever its code; None: none did.

    Raises:
        RunDirError: there is no run.
        BadInput: it is a run that closes itself, ``code`` is no exit code, or the record cannot be written.
    """
    root = safe_open.checked_directory(directory)
    where = f"{safe_open.shown_path(root)}/{layout.RUN_JSON}"
    record = read_record(root)
    if record.launcher != LAUNCHER:
        raise BadInput(f"{where}: not a run of `allpull env`: it closes itself", hint="leave --finish out")
    if not 0 <= code <= 255:
        raise BadInput(f"--code {code}: no exit code", hint="an exit code is 0 to 255; a shell has it in $?")
    if record.exit is not None:
        return record
    reason = None
    if interrupted is not None:
        shown, _ = redact.text(" ".join(interrupted.split()))
        code, reason = ENDED, f"a signal ended the script in the middle of: {shown[:SHOWN]}"
    failures = failures_of(root, NO_PID, code) if code else ()
    closed = record.model_copy(
        update={
            "status": "failed" if code else "completed",
            "exit": exit_of([HostEnding(host=socket.gethostname(), code=code, failures=failures, reason=reason)]),
            "ended_utc": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
    )
    closed = with_recorded_ranks(closed, root)
    if closed.command != record.command:  # that of the ranks
        closed = closed.model_copy(update={"script_sha256": digest_of(closed.command)})
    try:
        close_directory(root, closed)
    except OSError as error:
        raise BadInput(f"{where}: {error.strerror or error}", hint="is there room on the disk?") from error
    return closed


def closing_messages(record: RunRecord, directory: Path) -> list[str]:
    """Messages for the user about a run that was just closed."""
    watch = ProcessWatch((), directory.resolve())
    messages = [one.describe() for one in (record.exit,) if one is not None and (one.rank is not None or one.reason)]
    return messages + [sentence for sentence in (watch.why(), watch.twice()) if sentence is not None]


def _csh_quoted(text: str) -> str:
    r"""``text`` as one word of csh, where ``!`` and line ends keep a meaning inside quotes.

    >>> print(_csh_quoted("it's!"))
    'it'\''s\!'
    """
    return "'" + re.sub(r"([!\n])", r"\\\1", text.replace("'", "'\\''")) + "'"


def _fish_quoted(text: str) -> str:
    r"""``text`` as one word of fish, where a backslash protects a quote and itself.

    >>> print(_fish_quoted("it's"))
    'it\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_EXPORTS = {
    "sh": lambda name, value: f"export {name}={shlex.quote(value)}",
    "csh": lambda name, value: f"setenv {name} {_csh_quoted(value)};",
    "fish": lambda name, value: f"set -gx {name} {_fish_quoted(value)};",
}
"""Shell → a line that sets a variable for all that it starts."""

_PATH = """case ":${{PYTHONPATH:-}}:" in
*:{hook}:*) ;;
*) if [ -n "${{ALLPULL_JOB:-}}" ] || [ "${{PYTHONPATH:-}}" = {now} ]; then {same}
else export PYTHONPATH={hook}"${{PYTHONPATH:+:$PYTHONPATH}}"; fi ;;
esac"""
"""Shell: prepend the hook to PYTHONPATH, once; the hook of another run, which ALLPULL_JOB shows, is replaced."""

_FINISH = """trap > "$ALLPULL_RUN/{traps}"
case "$(cat "$ALLPULL_RUN/{traps}")" in
*'--finish "$ALLPULL_RUN"'*) ;;
*EXIT*) echo 'allpull: this script has an EXIT trap; let it run: allpull env --finish "$ALLPULL_RUN" --code $?' >&2 ;;
*) trap 'allpull_code=$?
[ -x {python} ] && {command}="${{BASH_VERSION:+$BASH_COMMAND}}" {jobs}="${{BASH_VERSION:+$(jobs -r)}}" \\
  {python} -m allpull env --finish "$ALLPULL_RUN" --code "$allpull_code"
exit "$allpull_code"' EXIT ;;
esac"""
"""Shell: close the run on exit, unless the script has an EXIT trap. Via a file: dash's $(trap) prints nothing."""
