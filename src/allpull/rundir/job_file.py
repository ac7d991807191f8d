"""The job file: what each process of a job reads about it, as one record with one reader and one writer.

``launch`` writes it before anything starts; agents, ranks, sidecars and the start-up hook read it. Standard library
only, for Python 3.9 and newer: it is copied into the environment of the observed program.

The file is kept, so its secrets are masked from the start: the nonce of the job, and passwords in its command and
specification. Processes that need them get them in a variable of their environment or, where none can be handed over
(Slurm, containers, scripts of the user), in a private file that is removed when the job ends.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from . import layout, redact
from .write import whole_json

JOB_VARIABLE = "ALLPULL_JOB"
"""The environment variable that holds the path of the job file in processes that run under the start-up hook."""

SECRETS_VARIABLE = "ALLPULL_SECRETS"
"""The environment variable that holds ``JobFile.secrets`` in processes that start ranks."""


@dataclass(frozen=True)
class WatchOptions:
    """What to record of a program beyond its steps."""

    trace_every: int = 0
    """Steps from one profiler window to the next; 0: no windows."""
    trace_steps: int = 3
    """Steps in a profiler window."""
    trace_first: int = 5
    """The step in which the first profiler window begins."""
    check_replicas: int = 0
    """Steps from one digest of all parameters and buffers to the next; 0: none."""
    steps: Optional[Tuple[int, Optional[int]]] = None
    """The first recorded step, and the first after it that is not recorded (None: to the end); None: every step."""


@dataclass(frozen=True)
class JobFile:
    """A job as its processes see it; the defaults are those of a field that the file does not have."""

    directory: str
    """The run directory on this host."""
    module: str = ""
    """The module of allpull that each rank runs; empty where the ranks run ``command``."""
    nonce: str = ""
    """The secret that the processes of the job share; empty, and never in the file that is kept."""
    id: str = ""
    """Names the job; no secret."""
    masked: bool = False
    """Whether secrets of the job are missing here."""
    ranks: int = 1
    """World size."""
    port: int = 0
    """Port of the rendezvous on the first host; 0: any free one."""
    bind: str = "none"
    """How the CPUs of a host are shared between its ranks (``launch.bind``)."""
    interface: str = ""
    """Network interface for Gloo; empty: the one with the route to the first host."""
    max_restarts: int = 0
    """How often failed ranks are started again."""
    counters: bool = False
    """Whether a sidecar samples the counters of each host."""
    counter_interval_s: float = 1.0
    """Time between two samples of the counters, s."""
    budget: int = 1 << 30
    """Bytes that each file of records may take."""
    warmup_steps: int = 0
    """Steps of each rank that are tagged as warm-up."""
    options: Dict[str, Any] = field(default_factory=dict)
    """Arguments of ``module`` beyond the specification, such as the sizes that a probe measures."""
    spec: Dict[str, Any] = field(default_factory=dict)
    """The specification of the run (``schema.spec.RunSpec``) in plain values."""
    command: Optional[Tuple[str, ...]] = None
    """The user's command that each rank runs; empty: it starts its own ranks; None: the job runs ``module``."""
    cwd: str = ""
    """Working directory of ``command``."""
    carried: Optional[str] = None
    """Working directory in the folder that is copied to hosts with another file system; None: nothing is copied."""
    watch: WatchOptions = WatchOptions()
    """What to record of ``command`` beyond its steps."""

    @classmethod
    def read(cls, path: str, secrets: Optional[str] = None) -> JobFile:
        """The job file at ``path`` with its ``secrets``, by default those of the environment or of the file beside it.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged.
        """
        with open(path, encoding="utf-8") as file:
            plain = json.load(file)
        if isinstance(plain, dict) and plain.get("masked"):
            beside = os.path.join(os.path.dirname(path), os.path.basename(layout.SECRETS))
            for text in (secrets, os.environ.get(SECRETS_VARIABLE), _content(beside)):
                known = _parsed(text)
                if known.get("id") == plain.get("id"):  # those of another job are none of ours
                    plain = {**plain, **known, "masked": False}
                    break
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Any) -> JobFile:
        """The job file with this JSON content; unknown fields are left out.

        Raises:
            ValueError: this is no job file.
        """
        if not isinstance(plain, dict) or not isinstance(plain.get("directory"), str):
            raise ValueError("not a job file: it names no run directory")  # noqa: TRY004  content of a file, no argument
        values = _known(cls, plain)
        if values.get("command") is not None:
            values["command"] = tuple(map(str, values["command"]))
        watch = _known(WatchOptions, values.pop("watch", None) or {})
        if watch.get("steps") is not None:
            watch["steps"] = tuple(watch["steps"])
        return cls(**values, watch=WatchOptions(**watch))

    def to_plain(self) -> Dict[str, Any]:
        """The content of the file, without what this job does not have."""
        plain = asdict(self)
        for name in ("nonce", "id", "masked"):
            if not plain[name]:
                del plain[name]
        if self.command is None:
            for name in ("command", "cwd", "watch"):
                del plain[name]
        if self.carried is None:
            del plain["carried"]
        return plain

    def write(self, path: str) -> None:
        """Write it to ``path``, all at once.

        Raises:
            OSError: it cannot be written; an older file is then untouched.
        """
        whole_json(path, self.to_plain())

    def kept(self, spec: Dict[str, Any]) -> JobFile:
        """This job as it is written to disk, with its secrets masked; ``spec`` is its redacted specification."""
        return replace(self.sealed(spec), masked=True)

    def secrets(self, kept: JobFile) -> str:
        """What ``kept`` masks, as one line of JSON."""
        whole, masked = self.to_plain(), kept.to_plain()
        missing = {name: value for name, value in whole.items() if masked.get(name) != value}
        return json.dumps({"id": self.id, **missing})

    def sealed(self, spec: Dict[str, Any]) -> JobFile:
        """This job after its end, for keeping: no nonce, secrets of the command masked, and the redacted ``spec``."""
        command = None if self.command is None else tuple(redact.arguments(list(self.command))[0])
        return replace(self, nonce="", masked=False, command=command, spec=spec)


def _content(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _parsed(secrets: Optional[str]) -> Dict[str, Any]:
    try:
        plain = json.loads(secrets or "{}")
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) and plain.get("id") else {}


def _known(record: Any, plain: Mapping[str, Any]) -> Dict[str, Any]:
    names = {one.name for one in fields(record)}
    return {name: value for name, value in plain.items() if name in names}
