"""The lines that `allpull env` prints for a script that cannot be wrapped, and closing the run when it ends.

The lines set the hook's variables, so that everything the script starts is observed, on other hosts too. If the shell
can, they also close the run when the script ends; a run that was not closed can still be read.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from allpull.errors import BadInput, UnknownName
from allpull.launch.command.hook_environment import hook_variables
from allpull.launch.command.missing_ranks import ProcessWatch
from allpull.launch.command.wrapped import failures_of
from allpull.launch.host_endings import HostEnding
from allpull.launch.job import Job
from allpull.launch.outcome import exit_of
from allpull.observe.hook_install import BINDS, CARRIED, MPI_LIST
from allpull.rundir import layout, safe_open
from allpull.rundir.job_file import JOB_VARIABLE
from allpull.rundir.read.headers import with_recorded_ranks
from allpull.rundir.run_record import read_record, write_record, write_script
from allpull.rundir.tidy import close_directory
from allpull.schema.run import RunRecord

LAUNCHER = "script"
RUN_VARIABLE = "ALLPULL_RUN"
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
    return "\n".join([*exports.values(), _FINISH.format(python=shlex.quote(sys.executable), traps=layout.TRAPS)])


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


def close_run(directory: Path, code: int) -> RunRecord:
    """Close the run in ``directory``, whose script ended with ``code``; a closed run stays unchanged.

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
    failures = failures_of(root, NO_PID, code) if code else ()
    closed = record.model_copy(
        update={
            "status": "failed" if code else "completed",
            "exit": exit_of([HostEnding(host=socket.gethostname(), code=code, failures=failures)]),
            "ended_utc": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
    )
    closed = with_recorded_ranks(closed, root)
    try:
        close_directory(root, closed)
    except OSError as error:
        raise BadInput(f"{where}: {error.strerror or error}", hint="is there room on the disk?") from error
    return closed


def closing_messages(record: RunRecord, directory: Path) -> list[str]:
    """Messages for the user about a run that was just closed."""
    watch = ProcessWatch((), directory.resolve())
    messages = [record.exit.describe()] if record.exit is not None and record.exit.rank is not None else []
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
[ -x {python} ] && {python} -m allpull env --finish "$ALLPULL_RUN" --code "$allpull_code"
exit "$allpull_code"' EXIT ;;
esac"""
"""Shell: close the run on exit, unless the script has an EXIT trap. Via a file: dash's $(trap) prints nothing."""
