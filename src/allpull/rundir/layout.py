"""The paths of a run directory: relative, in POSIX form.

Standard library only: every rank uses it.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Optional

RUNS = "runs"
"""The folder in which run directories are made by default."""

RUN_JSON = "run.json"
JOB = "job"
HOSTS = "hosts"
STEPS = "steps"
EVENTS = "events"
COUNTERS = "counters"
TRACES = "traces"
PROBES = "probes"
CHECKPOINTS = "checkpoints"
ATTEMPTS = "attempts"
"""Records of earlier attempts of a job that was started again: ``attempts/<number>/`` holds ``ATTEMPT_FOLDERS``."""
DERIVED = "derived"

CHECKPOINT_NAMES = "step-*.pt"
"""Pattern of the names of checkpoints in their folder; a later one sorts after an earlier one."""

SCRIPT = f"{JOB}/script.sh"
SPEC = f"{JOB}/spec.json"
SECRETS = f"{JOB}/secrets.json"
"""What is masked in ``SPEC``, while a job runs whose processes cannot be handed it otherwise."""
CARRIED = "carried"
"""On a host with another file system: the copy of the user's code, in the folder of the job there."""
RESERVE = f"{JOB}/reserve"
"""Room on the disk while a job runs, so that its end can be recorded where the disk has become full."""
LOGS = f"{JOB}/logs"
ENDED = f"{JOB}/ended"
QUEUE = f"{JOB}/slurm-job"
ENOUGH = f"{JOB}/enough"
"""Why a job was ended that had measured enough: written before it is ended, and its run is then completed."""
PROCESSES = f"{JOB}/processes"
TRAPS = f"{JOB}/traps"
CLOCK = f"{JOB}/clock.json"
HOOK = f"{JOB}/hook"
LIVE = f"{JOB}/live"

JOBS_LOG = "jobs.log"  # of a study: what its jobs print
LOG_ENDING = ".log"
"""Of the name of every file that holds what processes of the job printed."""
AGENT_LOG = f"{LOGS}/agent.log"
SLURM_LOG = f"{LOGS}/slurm.log"
MPIRUN_LOG = f"{LOGS}/mpirun.log"
STORE_LOG = f"{LOGS}/store.log"
BAD_SAMPLES = f"{LOGS}/odd-*.jsonl"
"""Pattern of the lists of samples that ranks could not use unchanged."""

CLUSTER_LOG = f"{LOGS}/cluster.log"
CLUSTER_ORDER = f"{JOB}/order.json"
CLUSTER_HOSTS = f"{JOB}/etc-hosts"
CLUSTER_CLOCK = f"{JOB}/clock"
CLUSTER_TRUTH = "truth.json"
"""Of a rehearsed cluster: the faults and rates actually set, which no analysis reads."""

EXPLANATION = f"{DERIVED}/explain.json"
TIMELINE = f"{DERIVED}/timeline.json.gz"
"""All ranks on one timeline for Perfetto, where a user writes it so that reports link to it."""
EXPLANATION_KEY = f"{DERIVED}/explain.key"
COLUMNS = f"{DERIVED}/columns"
SHOWN = f"{DERIVED}/show"
"""The result of ``allpull show`` for a large run."""

RECORDS = (HOSTS, STEPS, EVENTS, COUNTERS)
"""Folders of what hosts and ranks recorded."""
FOLDERS = (JOB, LOGS, ENDED, *RECORDS, DERIVED)
"""Folders that every job begins with."""
ATTEMPT_FOLDERS = (*RECORDS, ENDED)
"""Folders of one attempt's records."""

_RANK_FILE = re.compile(r"rank-([0-9]{5,7})\.jsonl")

MAX_NAME = 48  # of a name inside a path; file systems allow 255 bytes, and hosts and suffixes need some


def steps_file(rank: int) -> str:
    """The step records of ``rank``.

    >>> steps_file(7)
    'steps/rank-00007.jsonl'
    """
    return f"{STEPS}/rank-{rank:05d}.jsonl"


def events_file(rank: int) -> str:
    """The events of ``rank``."""
    return f"{EVENTS}/rank-{rank:05d}.jsonl"


def rank_of(name: str) -> Optional[int]:
    """The rank whose steps or events are in the file ``name`` of their folder; None: it is not such a file.

    >>> rank_of("rank-00007.jsonl"), rank_of("rank-7.jsonl")
    (7, None)
    """
    match = _RANK_FILE.fullmatch(name)
    return int(match.group(1)) if match else None


def log_file(rank: int) -> str:
    """What ``rank`` printed, both streams."""
    return f"{LOGS}/rank-{rank:05d}.log"


def bad_samples_file(rank: int) -> str:
    """Samples that ``rank`` could not use unchanged."""
    return BAD_SAMPLES.replace("*", f"{rank:05d}")


def counters_file(host: str) -> str:
    """The counters of ``host``."""
    return f"{COUNTERS}/{slug(host)}.jsonl"


def host_file(host: str) -> str:
    """The hardware and system of ``host``."""
    return f"{HOSTS}/{slug(host)}.json"


def ended_file(host: str) -> str:
    """How the ranks of ``host`` ended."""
    return f"{ENDED}/{slug(host)}.json"


def process_file(host: str, pid: int) -> str:
    """What process ``pid`` of ``host`` was: a rank, or why it became none."""
    return f"{PROCESSES}/{slug(host)}-{pid}.json"


def live_file(rank: int) -> str:
    """What ``rank`` is doing now."""
    return f"{LIVE}/rank-{rank:05d}"


def trace_file(rank: int, step: int) -> str:
    """The profiler window of ``rank`` that opened at ``step``."""
    return f"{TRACES}/rank-{rank:05d}-step-{step:07d}.json.gz"


def flight_recorder_file(rank: int, number: int, ending: str) -> str:
    """The imported flight-recorder dump ``number`` of ``rank``; ``ending`` is that of its name."""
    return f"{TRACES}/rank-{rank:05d}-flight-recorder-{number}.{ending}"


def checkpoint_name(step: int) -> str:
    """The name of the checkpoint after ``step`` steps, in the folder of checkpoints.

    >>> checkpoint_name(12)
    'step-0000000012.pt'
    """
    return CHECKPOINT_NAMES.replace("*", f"{step:010d}")


def probe_file(name: str) -> str:
    """The results of the probe ``name``."""
    return f"{PROBES}/{name}.json"


def agent_log(host: str) -> str:
    """What the agent of the remote ``host`` printed."""
    return f"{LOGS}/agent-{slug(host)}.log"


def torch_log(host: str) -> str:
    """What torch's agent said on ``host``, where the output is the user's command's."""
    return f"{LOGS}/torch-{slug(host)}.log"


def sidecar_log(host: str) -> str:
    """What the sidecar of ``host`` printed, where the output is the user's command's."""
    return f"{LOGS}/sidecar-{slug(host)}.log"


def slug(name: str) -> str:
    """A file name that is safe everywhere, made from any name.

    >>> slug("Größe <b>/../x"), slug("..."), slug("node01.cluster")
    ('Grosse-b-x', 'unnamed', 'node01.cluster')
    """
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    parts = [word.strip(".") for word in re.split(r"[^A-Za-z0-9._]+", plain)]
    return "-".join(word for word in parts if word)[:MAX_NAME].strip("-.") or "unnamed"


def run_name(utc: str, name: str, ranks: Optional[int], signature: str) -> str:
    """The name of a run directory; ``ranks`` is None where the number is unknown.

    >>> run_name("20261120T120000Z", "digits", 2, "1a2b3c4d")
    '20261120T120000Z_digits_n2_1a2b3c4d'
    """
    size = "" if ranks is None else f"n{ranks}_"
    return f"{utc}_{slug(name)}_{size}{signature}"
