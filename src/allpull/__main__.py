"""The ``allpull`` command, also ``python -m allpull``: Ctrl-C is one line while the verbs are imported, too."""

from __future__ import annotations

import sys

from allpull.errors import INTERRUPTED


def main() -> None:
    """The ``allpull`` command."""
    try:
        from allpull.cli import main as command  # noqa: PLC0415  what the import takes is to be interruptible
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    command()


if __name__ == "__main__":
    main()
