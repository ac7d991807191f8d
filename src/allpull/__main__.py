"""The ``allpull`` command, also ``python -m allpull``: Ctrl-C is one line while the verbs are imported, too."""

from __future__ import annotations

import os
import sys

from allpull.errors import INTERRUPTED


def main() -> None:
    """The ``allpull`` command."""
    _open_streams()
    try:
        from allpull.cli import main as command  # noqa: PLC0415  what the import takes is to be interruptible
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    command()


def _open_streams() -> None:
    """Let a standard stream that is closed (``>&-``) lead nowhere: else a file of ours would take its number.

    Programs that we start would then print into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(nowhere, True)
            setattr(sys, name, open(nowhere, "w" if number else "r", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
