"""The lab of gradient descent: one rank computes here, several are real processes that average their gradients."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from allpull.analyse.replicas import replicas
from allpull.errors import BadInput
from allpull.labs import line
from allpull.labs.ranks import check_ranks, run_ranks
from allpull.labs.sgd_program import RankPath, Task, check_program, read_path
from allpull.schema.base import tag
from allpull.schema.labs import LineRank, Position, ProgramCheck, SgdResult, Share, Without
from allpull.schema.replicas import ReplicaDifference

MOST_SAMPLES, MOST_UPDATES = 100_000, 1_000_000
SHRINKS_EXACTLY = 1e-3  # spread of the slope's shrinking below which it is a fact, not a random number


@dataclass(frozen=True, slots=True, kw_only=True)
class SgdLab:
    """What to do: ``batch`` samples per update (weak sharing: per rank), over ``epochs`` of ``samples`` points.

    ``without``: what the ranks leave out, so that their replicas part; ``share``: how they divide a batch; ``program``:
    what they run instead of the lab's own, to be checked.
    """

    batch: int = 100
    epochs: int = 150
    rate: float = 0.5
    samples: int = 1000
    seed: int = 0
    ranks: int = 1
    share: Share = "strong"
    without: Without | None = None
    program: Path | None = None

    def check(self) -> None:
        """Whether this can be done here.

        Raises:
            BadInput: it cannot; says what and why.
        """
        if not 2 <= self.samples <= MOST_SAMPLES:
            raise BadInput(f"--samples {self.samples}: 2 to {MOST_SAMPLES:,} points can be drawn")
        if self.epochs < 1 or not math.isfinite(self.rate) or self.rate <= 0:
            raise BadInput("--epochs is 1 or more, and --rate a positive number")
        check_ranks(self.ranks, 1)
        if self.program is not None and not self.program.is_file():
            raise BadInput(f"--program {self.program}: there is no such file")
        if self.program is not None and self.without:
            raise BadInput("--without changes the lab's own program, not that of --program", hint="one of the two")
        if self.ranks == 1 and (self.without or self.program or self.share == "weak"):
            raise BadInput("one rank has nobody to share a batch or to agree with", hint="add -n 2")
        if self.share == "strong" and self.batch % self.ranks:
            raise BadInput(
                f"a batch of {self.batch} cannot be divided among {self.ranks} ranks",
                hint=f"--batch {self.ranks * max(1, self.batch // self.ranks)}, or --share weak",
            )
        if not 1 <= self.whole_batch <= self.samples:
            raise BadInput(f"a batch of {self.whole_batch} samples: there are {self.samples}", hint="a smaller --batch")
        if self.updates > MOST_UPDATES:
            raise BadInput(f"{self.updates:,} updates are more than {MOST_UPDATES:,}", hint="fewer --epochs")

    @property
    def whole_batch(self) -> int:
        """Samples of one update, over all ranks."""
        return self.batch * self.ranks if self.share == "weak" else self.batch

    @property
    def updates(self) -> int:
        """How many updates there are: real ranks leave out a last, smaller batch, as a distributed sampler does."""
        each = self.samples / self.whole_batch
        return self.epochs * (math.ceil(each) if self.ranks == 1 else math.floor(each))


def run_sgd(lab: SgdLab, out: Path = Path("runs")) -> SgdResult:
    """Do ``lab``; the run directory of several ranks is made in ``out``.

    Raises:
        BadInput: it cannot be done here, or ``lab.program`` does not write what it should.
        AllpullError: the ranks failed; their run directory says why.
    """
    lab.check()
    points = line.samples(lab.samples, lab.seed)
    if lab.ranks == 1:
        path = line.descend(points, batch=lab.batch, epochs=lab.epochs, rate=lab.rate, seed=lab.seed)
        return _result(lab, points, [RankPath(path=path, gradient=np.zeros((0, 2)))], [])
    ranks, differences = _train(lab, points, out)
    return _result(lab, points, ranks, differences, _checked(lab, points, ranks))


def _train(lab: SgdLab, points: line.Samples, out: Path) -> tuple[list[RankPath], list[ReplicaDifference]]:
    """The paths of real ranks, and what the replica check reports."""
    with _program(lab) as script, tempfile.TemporaryDirectory(prefix="allpull-lab-") as folder:
        orders = np.stack([line.order(lab.samples, lab.seed, epoch) for epoch in range(lab.epochs)])
        np.savez(Path(folder, "data.npz"), x=points.x, y=points.y, orders=orders, start=np.array(line.START))
        command = [str(script), str(Path(folder, "data.npz")), folder, f"--batch={lab.whole_batch // lab.ranks}"]
        command += [f"--epochs={lab.epochs}", f"--rate={lab.rate}"]
        command += [f"--without={lab.without}"] if lab.without else []
        run = run_ranks(command, lab.ranks, "lab-sgd", out, sets=["watch.check_replicas=1"])
        task = _task(lab, points)
        paths = [read_path(Path(folder, f"rank-{rank}.json"), task, script.name) for rank in range(lab.ranks)]
    copies = replicas(run.data.events)
    return paths, [] if copies is None else sorted(copies.differ, key=lambda one: one.rank)


@contextmanager
def _program(lab: SgdLab) -> Iterator[Path]:
    """The file that the ranks run."""
    if lab.program is not None:
        yield lab.program.absolute()
        return
    with as_file(files("allpull.labs.programs").joinpath("sgd_by_hand.py")) as script:
        yield script


def _task(lab: SgdLab, points: line.Samples) -> Task:
    return Task(points=points, batch=lab.whole_batch, ranks=lab.ranks, epochs=lab.epochs, rate=lab.rate, seed=lab.seed)


def _checked(lab: SgdLab, points: line.Samples, ranks: Sequence[RankPath]) -> ProgramCheck | None:
    if lab.program is None:
        return None
    return check_program(lab.program.name, _task(lab, points), [rank.path for rank in ranks])


def _result(
    lab: SgdLab,
    points: line.Samples,
    ranks: Sequence[RankPath],
    differences: list[ReplicaDifference],
    program: ProgramCheck | None = None,
) -> SgdResult:
    best = line.optimum(points)
    each = [_positions(points, rank.path) for rank in ranks]
    ends = np.array([rank.path[-1] for rank in ranks])
    return SgdResult(
        schema=tag("lab"),
        batch=lab.whole_batch,
        ranks=lab.ranks,
        share=lab.share,
        without=lab.without,
        epochs=lab.epochs,
        updates=ranks[0].path.shape[0] - 1,
        rate=lab.rate,
        seed=lab.seed,
        samples=lab.samples,
        best=Position(update=0, slope=best[0], offset=best[1], loss=float(line.loss(points, *best))),
        loss_end=each[0][-1].loss,
        path=each[0],
        by_rank=[_of_rank(number, path, rank) for number, (path, rank) in enumerate(zip(each, ranks, strict=True))]
        if lab.ranks > 1
        else [],
        shrinks=_shrinks(ranks[0].path, best[0]),
        apart=max(math.dist(one, other) for one in ends for other in ends),
        differ=[one.rank for one in differences],
        differences=differences,
        program=program,
    )


def _positions(points: line.Samples, path: line.Floats) -> list[Position]:
    chosen = line.shown(path.shape[0] - 1)
    losses = line.loss(points, path[chosen, 0], path[chosen, 1])
    return [
        Position(update=int(update), slope=float(path[update, 0]), offset=float(path[update, 1]), loss=float(value))
        for update, value in zip(chosen, losses, strict=True)
    ]


def _of_rank(number: int, path: list[Position], rank: RankPath) -> LineRank:
    known = rank.gradient.size > 0
    own = [(float(rank.gradient[one.update, 0]), float(rank.gradient[one.update, 1])) for one in path[:-1] if known]
    return LineRank(rank=number, path=path, gradient=own)


def _shrinks(path: line.Floats, best: float) -> float | None:
    """The share of the slope's error that each update removes, where all remove the same; None: it is random."""
    error = np.abs(path[1:12, 0] - best)
    if error.size < 3 or error.min() <= 0:
        return None
    removed = 1 - error[1:] / error[:-1]
    return float(np.median(removed)) if np.ptp(removed) < SHRINKS_EXACTLY else None
