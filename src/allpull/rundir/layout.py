"""Where everything stands in a run directory. Paths are relative, in POSIX form.

Standard library only: every rank uses it.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Optional

RUN_JSON = "run.json"
SCRIPT = "job/script.sh"
SPEC = "job/spec.json"
LOGS = "job/logs"
ENDED = "job/ended"
QUEUE = "job/slurm-job"
PROCESSES = "job/processes"
CLOCK = "job/clock.json"
HOOK = "job/hook"
LIVE = "job/live"
TRACES = "traces"
CHECKPOINTS = "checkpoints"
FOLDERS = ("job", LOGS, ENDED, "hosts", "steps", "events", "counters", "derived")

NO_COUNTERS = "no counters: "
"""Part of the format: how an entry of a counters file's `sources` begins that says why nothing was counted."""

MAX_NAME = 48  # of a name inside a path; file systems allow 255 bytes, and hosts and suffixes need some


def steps_file(rank: int) -> str:
    """The step records of ``rank``.

    >>> steps_file(7)
    'steps/rank-00007.jsonl'
    """
    return f"steps/rank-{rank:05d}.jsonl"


def events_file(rank: int) -> str:
    """What happened beside the steps of ``rank``."""
    return f"events/rank-{rank:05d}.jsonl"


def log_file(rank: int) -> str:
    """What ``rank`` printed, both streams."""
    return f"{LOGS}/rank-{rank:05d}.log"


def odd_file(rank: int) -> str:
    """Samples that ``rank`` could not take as they are."""
    return f"{LOGS}/odd-{rank:05d}.jsonl"


def counters_file(host: str) -> str:
    """The counters of ``host``."""
    return f"counters/{slug(host)}.jsonl"


def host_file(host: str) -> str:
    """What ``host`` is."""
    return f"hosts/{slug(host)}.json"


def ended_file(host: str) -> str:
    """How the ranks of ``host`` ended."""
    return f"{ENDED}/{slug(host)}.json"


def process_file(host: str, pid: int) -> str:
    """What process ``pid`` of ``host`` was: a rank, or why it was none."""
    return f"{PROCESSES}/{slug(host)}-{pid}.json"


def live_file(rank: int) -> str:
    """What ``rank`` does at this moment."""
    return f"{LIVE}/rank-{rank:05d}"


def trace_file(rank: int, step: int) -> str:
    """The profiler window of ``rank`` that opened at ``step``."""
    return f"{TRACES}/rank-{rank:05d}-step-{step:07d}.json.gz"


def slug(name: str) -> str:
    """A file name that is safe everywhere, made from any name.

    >>> slug("Größe <b>/../x"), slug("..."), slug("node01.cluster")
    ('Grosse-b-x', 'unnamed', 'node01.cluster')
    """
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    words = [word.strip(".") for word in re.split(r"[^A-Za-z0-9._]+", plain)]
    return "-".join(word for word in words if word)[:MAX_NAME].strip("-.") or "unnamed"


def run_name(utc: str, name: str, ranks: Optional[int], signature: str) -> str:
    """The name of a run directory; ``ranks`` is None where nobody knows how many there will be.

    >>> run_name("20261120T120000Z", "digits", 2, "1a2b3c4d")
    '20261120T120000Z_digits_n2_1a2b3c4d'
    """
    size = "" if ranks is None else f"n{ranks}_"
    return f"{utc}_{slug(name)}_{size}{signature}"
