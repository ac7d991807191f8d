"""A command line of the user's: its title, whether it can be a rank, and whether Python takes a start-up hook."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from allpull.errors import BadInput
from allpull.observe.rank.command import PYTHON

_INTERPRETER = re.compile(r"python(\d+(\.\d+)*t?)?|pypy3?")
_STARTERS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "srun", "mpirun", "mpiexec", "jsrun")
_STARTER_MODULES = ("torch.distributed.", "accelerate.", "deepspeed.", "horovod.")
_HOOK_BLOCKING = {"I": "-I", "S": "-S", "E": "-E"}  # isolated, without site, without PYTHON… variables
_WITH_VALUE = {"W", "X"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCall:
    """A call of Python: its flags (letters), what it runs (script, module, code or nothing), and at which word."""

    flags: str
    kind: str
    place: int


def is_python(word: str) -> bool:
    """Whether ``word`` names a Python.

    >>> [is_python(word) for word in ("python", "/opt/bin/python3.11", "pythonic", "torchrun")]
    [True, True, False, False]
    """
    return _INTERPRETER.fullmatch(Path(word).name) is not None


def python_call(arguments: Sequence[str]) -> PythonCall:
    """What ``arguments``, the first of which is a Python, make it run (parsed as Python parses its command line).

    >>> python_call(["python", "-uI", "-Xdev", "-W", "error", "train.py", "-S"])
    PythonCall(flags='uI', kind='script', place=5)
    >>> python_call(["python", "-Omtrain"]).kind
    'module'
    """
    flags, place = "", 1
    while place < len(arguments):
        word = arguments[place]
        if word == "--check-hash-based-pycs":
            place += 1
        elif word == "-" or not word.startswith("-"):
            return PythonCall(flags=flags, kind="nothing" if word == "-" else "script", place=place)
        elif not word.startswith("--"):
            letters = re.match(r"-([^cmWX]*)([cmWX]?)(.*)", word, re.DOTALL)
            assert letters is not None
            plain, last, attached = letters.groups()
            flags += plain
            place += last in _WITH_VALUE and not attached
            if last in {"c", "m"}:
                return PythonCall(flags=flags, kind={"c": "code", "m": "module"}[last], place=place + (not attached))
        place += 1
    return PythonCall(flags=flags, kind="nothing", place=place)


def hook_blocking_flag(arguments: Sequence[str]) -> str | None:
    """The flag that keeps every start-up hook out of the Python that ``arguments`` start, or None.

    >>> hook_blocking_flag(["python3", "-uI", "train.py"]), hook_blocking_flag(["python3", "train.py", "-I"])
    ('-I', None)
    """
    if not arguments or not is_python(arguments[0]):
        return None
    return next((_HOOK_BLOCKING[flag] for flag in python_call(arguments).flags if flag in _HOOK_BLOCKING), None)


def title(arguments: Sequence[str]) -> str:
    """The name of a run of ``arguments``: its first Python script, else its module, else its shell script.

    >>> title(["torchrun", "--nproc-per-node", "4", "src/train.py", "--lr", "0.1"]), title(["bash", "job.sh"])
    ('train', 'job')
    >>> title(["python", "-m", "torch.distributed.run", "-m", "mine.train"]), title(["./a.out"])
    ('train', 'a')
    """
    for suffix in (".py", ".sh"):
        script = next((word for word in arguments if word.endswith(suffix) and Path(word).stem), None)
        if script is not None:
            return Path(script).stem
        modules = [after for word, after in pairwise(arguments) if word == "-m"]
        if modules:
            return modules[-1].rpartition(".")[2] or modules[-1]
    return (Path(arguments[0]).stem if arguments else "") or "run"


def as_rank(arguments: Sequence[str], *, check_files: bool) -> tuple[str, ...]:
    """The command of one rank: ``train.py …``, ``-m pkg.mod …`` or ``python train.py …``, made ready for ``start``.

    A Python other than ours keeps its name and options. ``check_files``: the script must exist here.

    Raises:
        BadInput: it is no such command, or its script does not exist.
    """
    if not arguments:
        raise BadInput("no command was given", hint="give one, such as train.py")
    if is_python(arguments[0]):
        ready, call = (PYTHON if _is_our_python(arguments[0]) else arguments[0], *arguments[1:]), python_call(arguments)
    elif arguments[0].endswith(".py") or arguments[0] == "-m" or _is_python_script(Path(arguments[0])):
        ready = (PYTHON, *arguments)
        call = python_call(ready)
    else:
        raise BadInput(f"{arguments[0]!r} cannot be started as ranks: {_RANK_COMMANDS}", hint=_hint(arguments))
    target = ready[call.place] if call.place < len(ready) else ""
    if not target or call.kind == "nothing" or (call.kind == "module" and target.startswith(_STARTER_MODULES)):
        raise BadInput(
            f"{' '.join(arguments[:4])!r} cannot be started as ranks: {_RANK_COMMANDS}", hint=_hint(arguments)
        )
    if call.kind == "script" and check_files and not Path(target).exists():
        raise BadInput(f"no such file: {target}", hint="give the path of the script, from here")
    return ready


_RANK_COMMANDS = "a rank is a script, `python script` or `-m module`"


def _hint(arguments: Sequence[str]) -> str:
    starts = Path(arguments[0]).name in _STARTERS or any(word.startswith(_STARTER_MODULES) for word in arguments)
    return ("it starts ranks itself: " if starts else "") + "omit the number of ranks (-n), and it runs unchanged"


def _is_our_python(word: str) -> bool:
    """Whether ``word`` is the Python that runs us: the same program in the same environment."""
    path = shutil.which(word)
    if path is None:
        return False
    here, there = Path(sys.executable), Path(path)
    return os.path.realpath(here) == os.path.realpath(there) and here.parent.resolve() == there.parent.resolve()


def _is_python_script(path: Path) -> bool:
    """Whether the shebang of the file at ``path`` names Python."""
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except (OSError, ValueError):
        return False
    return first.startswith(b"#!") and re.search(rb"\bpython[\d.]*\b", first) is not None
