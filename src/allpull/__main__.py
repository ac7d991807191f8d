"""``python -m allpull`` is ``allpull``."""

from allpull.cli import main

if __name__ == "__main__":
    main()
