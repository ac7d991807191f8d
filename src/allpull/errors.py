"""All errors that allpull raises for users, as one tree.

    AllpullError
    ├── BadInput            the user can fix it: exit code 2
    │   ├── ConfigError     one or more faults in a specification, all listed
    │   ├── RunDirError     a run directory that cannot be read
    │   └── UnknownName     no such recipe, model, launcher …
    └── MissingPart         a library, tool or device that this command needs is missing: exit code 2

Each carries a ``hint``: what to do next. The command line prints both, never a traceback. A user's program that
fails is not an error of allpull: its exit code is passed on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

INTERRUPTED = 130  # exit code after Ctrl-C: 128 + the number of SIGINT
MOST_NAMES = 60  # of those that exist, in a message


class AllpullError(Exception):
    """An error with a remedy.

    ``message`` says what and where, ``hint`` says what to do; ``exit_code`` is what the command line returns.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:  # that of Exception calls the class with the message alone
        return _rebuilt, (type(self), self.message, vars(self))


class BadInput(AllpullError):
    """What the user gave cannot be used; nothing was changed."""


class ConfigError(BadInput):
    """One or more faults in a specification; ``faults`` holds a line for each."""

    def __init__(self, source: str, faults: Iterable[str], *, hint: str = "") -> None:
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{source}: {count} fault{'s' if count != 1 else ''}"
        super().__init__("\n  ".join([head, *self.faults]), hint=hint)


class RunDirError(BadInput):
    """A run directory is missing, damaged or from another version."""


class UnknownName(BadInput):
    """An unknown name, with the nearest known one and all that exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        names = sorted(known)
        close = nearest(name, names)
        suggestion = f"did you mean '{close}'? " if close else ""
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        super().__init__(f"no {kind} '{name}'; {suggestion}known: {', '.join(names[:MOST_NAMES])}{more}", hint=hint)


class MissingPart(AllpullError):
    """A library, program or device that this command needs is not installed here."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or None.

    >>> nearest("digts", ["digits", "fashion-mnist"])
    'digits'
    >>> nearest("zebra", ["digits"]) is None
    True
    """
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def threads_ran_out(error: BaseException) -> bool:
    """Whether the system refused a thread or a process (``ulimit -u``), in the words of Python or of a library.

    >>> threads_ran_out(RuntimeError("can't start new thread"))
    True
    """
    said = str(error)
    return "Resource temporarily unavailable" in said or "can't start new thread" in said


TREE = {kind.__name__: kind for kind in (AllpullError, BadInput, ConfigError, RunDirError, UnknownName, MissingPart)}


def to_plain(error: AllpullError) -> dict[str, Any]:
    """``error`` as JSON holds it. A class of another module becomes its nearest one here.

    >>> from_plain(to_plain(ConfigError("job.toml", ["x: no such option"]))).faults
    ('x: no such option',)
    """
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind in TREE.values())
    return {"kind": kind, "message": error.message, "hint": error.hint, "faults": list(getattr(error, "faults", ()))}


def from_plain(plain: Mapping[str, Any]) -> AllpullError:
    """The error that ``plain`` was made from by `to_plain`."""
    kind, fields = TREE[plain["kind"]], {"message": plain["message"], "hint": plain["hint"]}
    if kind is ConfigError:
        fields["faults"] = tuple(plain["faults"])
    return _rebuilt(kind, plain["message"], fields)


def _rebuilt(kind: type[AllpullError], message: str, fields: Mapping[str, Any]) -> AllpullError:
    """An error of ``kind`` with all its ``fields``, whatever its class takes to make one."""
    error = kind.__new__(kind, message)
    vars(error).update(fields)
    return error
