"""How a run was started: which options, flags and lines exist there that a remedy can name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from allpull.rundir.read.headers import USER_STARTED
from allpull.rundir.user_command import user_command
from allpull.schema.run import RunRecord

Starter = Literal["train", "run", "torchrun", "srun", "mpirun", "command", "rehearsal", "trace"]
"""train: our trainer. run: `allpull run -n`. trace: imported. Otherwise what starts the ranks of an unchanged command;
command: something else, such as a batch script."""

STARTERS: Mapping[str, Starter] = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "srun": "srun",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "mpiexec.hydra": "mpirun",
}
"""Word of a command before the program → what it starts ranks with; the innermost one decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a run was started.

    ``launcher``: the name of allpull's own launcher, without its argument; empty where allpull did not start the ranks.
    ``on_slurm``: a job of Slurm. ``by_mpi``: mpirun started the ranks, which passes on only variables that it is given.
    ``threads``: of a rank, as configured. The others are options of our trainer: ``packed`` and ``folder``, whether it
    reads a pack or an image folder; ``batch``, samples per rank; and epochs or steps between evaluations and
    checkpoints, 0: a checkpoint per epoch.
    """

    starter: Starter = "command"
    launcher: str = ""
    on_slurm: bool = False
    by_mpi: bool = False
    threads: int | None = None
    packed: bool = False
    folder: bool = False
    batch: int = 1
    evaluate_every: int = 1
    checkpoint_every: int = 0

    def sets(self, option: str) -> bool:
        """Whether `--set` of such a run takes ``option``, a key of the specification."""
        if self.starter == "train":
            return True
        return self.starter == "run" and option.startswith(("launch.", "slurm.", "observe.", "watch."))


def start_of(record: RunRecord) -> Start:
    """How the run of ``record`` was started.

    >>> from allpull.schema.run import RunRecord
    >>> words = ["allpull", "run", "--", "srun", "-n", "2", "torchrun", "--nproc-per-node=2", "train.py"]
    >>> fields = {"schema": "allpull.run/1", "id": "a", "name": "a", "created_utc": "", "spec": {}, "versions": {}}
    >>> record = RunRecord(**fields, kind="run", status="completed", command=words, launcher="command", ranks=4)
    >>> start_of(record).starter, start_of(record).on_slurm
    ('torchrun', True)
    """
    launcher = record.launcher.partition(":")[0]
    words = _words_before_program(record.command)
    train = record.spec.get("train") or {}
    data = record.spec.get("data") or {}
    return Start(
        starter=_starter(record, words),
        launcher="" if launcher in USER_STARTED or _is_trace(record) else launcher,
        on_slurm=launcher == "slurm" or record.job is not None or "srun" in words or _has(record, "SLURM_"),
        by_mpi=launcher == "mpi" or _has(record, "OMPI_") or any(STARTERS.get(word) == "mpirun" for word in words),
        threads=record.threads_per_rank,
        packed=data.get("name") == "pack",
        folder=data.get("name") == "imagefolder",
        batch=int(train.get("batch") or 1),
        evaluate_every=int(train.get("evaluate_every") or 1),
        checkpoint_every=int(train.get("checkpoint_every") or 0),
    )


def _starter(record: RunRecord, words: Sequence[str]) -> Starter:
    if record.kind == "rehearse":
        return "rehearsal"
    if _is_trace(record):
        return "trace"
    if record.launcher not in USER_STARTED:
        return "run" if record.kind == "run" else "train"
    return next((STARTERS[word] for word in reversed(words) if word in STARTERS), "command")


def _is_trace(record: RunRecord) -> bool:
    return record.launcher == "import"


def _words_before_program(command: Sequence[str]) -> list[str]:
    """The names of the programs and modules that start the user's program in ``command``."""
    own = user_command(command)
    return [PurePath(word).name for word in (*own.options.get("started by", "").split(), own.program)]


def _has(record: RunRecord, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in record.environment)
