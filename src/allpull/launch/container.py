"""Run a command inside an Apptainer or Singularity container: the same command, with the runtime in front.

A launcher gets the interpreter of its command from ``python`` and wraps the whole command. Nothing else about a job
changes: the container sees the environment, the working directory, the home and the run directory. With an option that
empties the environment (``--cleanenv``), the variables that a rank needs are passed in all the same.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from allpull.errors import BadInput, MissingPart
from allpull.launch.job import RECORDED_VARIABLES
from allpull.observe.identity import HOST_VARIABLE, STARTERS
from allpull.rundir import redact
from allpull.schema.spec import ContainerSpec
from allpull.version import __version__

ANSWER_S = 900.0  # an image that is fetched from a registry, or unpacked, takes minutes the first time
MAX_COMPLAINT = 300  # characters; the rest is in no message
NOT_LIBRARIES = frozenset({"SLURM_", "OMPI_", "PMI_", "PMIX_", "PYTHON", "LD_PRELOAD"})
"""Recorded variables that a clean environment must not have: those of another parallel start, and the host's Python's.

``RANK_VARIABLES`` names the few of them that ranks need.
"""

RANK_VARIABLES = (
    *(name for names in STARTERS for name in names),
    *("SLURM_STEP_ID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURMD_NODENAME", "MASTER_ADDR", "MASTER_PORT"),
    *("PYTHONUNBUFFERED", "PYTHONHASHSEED", HOST_VARIABLE),
    *("ALLPULL_RESUME", "ALLPULL_ATTEMPTS", "ALLPULL_SAVE_ON_TERM"),
)

_GUARD = """\
for s in HUP INT QUIT TERM USR1; do trap "got=$s; kill -$s \\$! 2>/dev/null" $s; done
"$@" &
[ -z "$got" ] || kill -$got $!
while :; do wait $!; code=$?; kill -0 $! 2>/dev/null || exit $code; done"""
"""Shell: run a command, pass signals on to it, and exit with its code."""

_TERMINAL = """\
trap 'trap "" HUP; kill -HUP 0' HUP
trap : USR1
"$@" &
while :; do wait $!; code=$?; kill -0 $! 2>/dev/null || exit $code; done"""
"""Shell: run a command; send SIGHUP to its whole process group when the terminal hangs up; ignore SIGUSR1 here."""

_CLEANS = re.compile(r"--(cleanenv|containall)(=true)?|-[A-Za-z]*[eC][A-Za-z]*")  # options that empty the environment
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SECRET = "(TOKEN|SECRET|PASS|CREDENTIAL|KEY)"  # noqa: S105  command lines are public: these variables are not passed

_PROBE = """\
import json, platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown" if find_spec(name) else None
try:
    from allpull import __version__ as ours
except ImportError:
    ours = None
print(json.dumps({"allpull": ours, "python": platform.python_version(), "torch": found("torch")}))"""


def python(container: ContainerSpec) -> str:
    """The Python that runs a job's processes: the container's, or ours without a container."""
    return container.python if container.image else sys.executable


def wrap(container: ContainerSpec, command: Sequence[str], *, shown: Sequence[Path] = ()) -> list[str]:
    """``command`` inside the container; unchanged without an image.

    ``shown`` are folders that allpull needs inside, at the same paths; the user's come from ``container.binds``.

    >>> wrap(ContainerSpec(image="t.sif", binds=("/data:/data:ro",)), ["python3", "-V"], shown=[Path("/runs/a")])
    ['apptainer', 'exec', '--bind', '/runs/a', '--bind', '/data:/data:ro', 't.sif', 'python3', '-V']

    Raises:
        BadInput: a path that the runtime cannot bind.
    """
    if not container.image:
        return list(command)
    binds = [word for path in shown for word in ("--bind", _bindable(path))]
    binds += [word for bind in container.binds for word in ("--bind", bind)]
    inside = [container.runtime, "exec", *binds, *container.options, _image(container.image)]
    if any(_CLEANS.fullmatch(option) for option in container.options):
        return ["sh", "-c", _carrying(inside), "sh", *command]
    return [*inside, *command]


def guarded(container: ContainerSpec, command: Sequence[str]) -> list[str]:
    """``command``, made by ``wrap``, behind a shell that ends it when the parent dies.

    The kernel clears the parent-death signal when a thread other than the first executes a new program (``prctl(2)``,
    ``PR_SET_PDEATHSIG``), which is how Apptainer starts; so a shell in front of it keeps that signal.
    """
    return ["sh", "-c", _GUARD, "sh", *command] if container.image else list(command)


def attended(container: ContainerSpec, command: Sequence[str]) -> list[str]:
    """``command``, made by ``wrap``, behind a shell that ends it when its terminal hangs up.

    The kernel signals only the session leader of a terminal, and Apptainer does not pass the signal on, so its own
    processes would survive.
    """
    return ["sh", "-c", _TERMINAL, "sh", *command] if container.image else list(command)


def check(container: ContainerSpec) -> dict[str, str | None]:
    """Check that the container can run our ranks on this machine, by starting its Python once.

    Returns the versions of its Python and torch; empty without a container.

    Raises:
        MissingPart: the runtime is not installed.
        BadInput: the image or a folder to bind is missing, the container does not start, or it lacks what ranks
            need.
    """
    if not container.image:
        return {}
    if shutil.which(container.runtime) is None:
        raise MissingPart(
            f"container.runtime: no {container.runtime} on this machine",
            hint="load its module, or set container.runtime to the one that is here",
        )
    if "://" not in container.image and not Path(container.image).exists():
        raise BadInput(
            f"container.image: {container.image} is not there",
            hint="build it: apptainer build allpull.sif containers/allpull.def",
        )
    try:
        answer = subprocess.run(
            question(container), capture_output=True, stdin=subprocess.DEVNULL, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInput(
            f"container.image: {container.image} did not start within {ANSWER_S:.0f} s",
            hint="fetch or build the image yourself, and name the file",
        ) from None
    return versions(container, answer)


def question(container: ContainerSpec) -> list[str]:
    """The command that prints what a container has installed; ``versions`` reads its output."""
    return wrap(container, [python(container), "-c", _PROBE])


def versions(container: ContainerSpec, answer: subprocess.CompletedProcess[bytes]) -> dict[str, str | None]:
    """The versions of Python and torch inside a container, from its ``answer`` to ``question``.

    Raises:
        BadInput: it did not start (with the runtime's error), or it lacks what our ranks need.
    """
    have = _read_answer(container, answer)
    missing = [name for name in ("allpull", "torch") if have[name] is None]
    if missing:
        raise BadInput(
            f"container.image: {container.image} has no {' and no '.join(missing)} for its {container.python}",
            hint="build it from containers/allpull.def, or name the Python that has them with container.python",
        )
    if have["allpull"] != __version__:
        raise BadInput(
            f"container.image: {container.image} has allpull {have['allpull']}, and this is {__version__}",
            hint="build it again from the same version",
        )
    return {name: have[name] for name in ("python", "torch")}


def _read_answer(container: ContainerSpec, answer: subprocess.CompletedProcess[bytes]) -> dict[str, str | None]:
    try:
        answer_json = json.loads(answer.stdout.splitlines()[-1])
        return {name: answer_json[name] for name in ("allpull", "python", "torch")}
    except (ValueError, IndexError, KeyError, TypeError):
        error_text = complaint(answer.stderr.decode("utf-8", "replace")) or f"exit code {answer.returncode}"
        raise BadInput(
            f"container.image: {container.image} does not start: {error_text}",
            hint=f"try it yourself: {shlex.join(wrap(container, [container.python, '-V']))}",
        ) from None


def complaint(stderr: str) -> str:
    """The line of a runtime's stderr that says why it failed, secrets masked; the last line if none is marked as error.

    >>> complaint("WARNING: skipping mount\\n\\x1b[31mFATAL:  \\x1b[0m image format not recognized\\nUsage: ...")
    'FATAL: image format not recognized'
    """
    lines = [" ".join(_COLOUR.sub("", line).split()) for line in stderr.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("FATAL", "Error"))]
    line = (marked or lines[-1:] or [""])[0]
    clean, _ = redact.text("".join(c for c in line if c.isprintable()))
    return clean[:MAX_COMPLAINT]


def _carrying(inside: Sequence[str]) -> str:
    """Shell: run the arguments with ``inside``, a container whose environment has only what a rank needs.

    The values are passed as arguments of ``env`` inside the container, because some runtimes expand the values of
    variables that they set themselves.
    """
    families = "|".join(prefix for prefix in RECORDED_VARIABLES if prefix not in NOT_LIBRARIES)
    names = f"({families})[A-Za-z0-9_]*|{'|'.join(RANK_VARIABLES)}"
    listed = f"BEGIN {{ for (n in ENVIRON) if (n ~ /^({names})$/ && n !~ /{_SECRET}/) print n }}"
    return (
        f"for name in $(awk {shlex.quote(listed)}); do "
        'eval "set -- \\"$name=\\$$name\\" \\"\\$@\\""; done; '
        f'exec {shlex.join(inside)} env "$@"'
    )


def _bindable(path: Path) -> str:
    text = str(path)
    if ":" in text or "," in text:
        raise BadInput(
            f"{text} cannot be shown to a container: its runtime splits paths at ':' and ','",
            hint="choose a folder for runs without them (--out)",
        )
    return text


def _image(image: str) -> str:
    """The image as an operand that cannot be read as an option."""
    return f"./{image}" if image.startswith("-") else image
