"""What happens once per epoch or once per job, and how it depends on the number of ranks.

    epoch = steps · step + evaluation + checkpoints · checkpoint + start of the epoch

    evaluation   serial on rank 0: the same for every N (Amdahl's law: it limits the speed-up of an epoch)
                 sharded: T · M ÷ N, in no less than one batch, plus one all-reduce of the scores, which is neglected
    checkpoint   written by one rank: the same for every N; by every rank of its share: T · M ÷ N of the bytes at the
                 rate of one writer, as long as the storage that all share is no limit
    epoch start  loaders fill their first batch in parallel on all ranks: the same for every N
    job start    interpreter, imports, process group: T + a round per doubling, log2(N ÷ M)

T was measured on M ranks. Times are (draws,), resampled from what was recorded; two evaluations have one difference,
so the spread of few is taken to be at least ``LEAST_SPREAD``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Division = Literal["serial", "sharded"]

LEAST_SPREAD = 0.02  # of the mean of few events: the host factor of a day is about 1 %, of two days √2 of it
SERIAL_SHARE = 0.1  # of the longest rank's time, that the others take at most where one rank works alone
EVEN_SHARE = 0.5  # of the longest rank's time, that every rank takes at least where all share the work


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Periodic:
    """One kind of event: ``seconds`` (draws,) of one, on ``ranks`` ranks; ``per_epoch`` how often it happens.

    ``least_s``: of one batch or write, below which more ranks do not help. ``state``: how well it is known.
    ``is_certain``: how its work is divided was seen; on one rank it cannot be.
    """

    seconds: Floats
    ranks: int
    division: Division
    per_epoch: float = 1.0
    least_s: float = 0.0
    is_certain: bool = True

    def once(self, ranks: int) -> Floats:
        """Seconds of one event on ``ranks``, (draws,)."""
        if self.division == "serial":
            return self.seconds
        shared: Floats = np.maximum(self.seconds * self.ranks / ranks, np.minimum(self.seconds, self.least_s))
        return shared

    def per_epoch_s(self, ranks: int) -> Floats:
        """Seconds per epoch on ``ranks``, (draws,)."""
        total: Floats = self.once(ranks) * self.per_epoch
        return total

    def divided(self, division: Division) -> Periodic:
        """The same work, divided otherwise: one rank takes as long as all shares together."""
        factor = {("serial", "sharded"): 1 / self.ranks, ("sharded", "serial"): float(self.ranks)}
        return Periodic(
            seconds=self.seconds * factor.get((self.division, division), 1.0),
            ranks=self.ranks,
            division=division,
            per_epoch=self.per_epoch,
            least_s=self.least_s,
        )


def division(by_rank_s: Floats) -> tuple[Division, bool]:
    """How the work of events ``by_rank_s`` (events, ranks) is divided, and whether that can be seen.

    One rank that works while the others do nothing is serial. All ranks alike is sharded; it could also be the same
    work on every rank, which more ranks do not shorten. Anything between counts as serial, which is the slower answer.

    >>> division(np.array([[4.0, 0.0, 0.0, 0.1]])), division(np.array([[1.0, 0.9]])), division(np.array([[3.0]]))
    (('serial', True), ('sharded', True), ('serial', False))
    """
    if by_rank_s.shape[1] == 1:
        return "serial", False
    total = np.sort(by_rank_s.sum(axis=0))
    if total[-2] <= SERIAL_SHARE * total[-1]:
        return "serial", True
    if total[0] >= EVEN_SHARE * total[-1]:
        return "sharded", True
    return "serial", False


def fitted(by_rank_s: Floats, draws: int, rng: np.random.Generator, *, per_epoch: float = 1.0) -> Periodic | None:
    """The events ``by_rank_s`` (events, ranks), each as long as on its slowest rank; None: there were none."""
    if not by_rank_s.size or not by_rank_s.any():
        return None
    longest = by_rank_s.max(axis=1)
    division_seen, is_certain = division(by_rank_s)
    return Periodic(
        seconds=resampled_mean(longest, draws, rng),
        ranks=by_rank_s.shape[1],
        division=division_seen,
        per_epoch=per_epoch,
        is_certain=is_certain,
    )


def resampled_mean(values: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Bootstrap means of ``values`` (n,), (draws,), with a relative spread of at least ``LEAST_SPREAD``."""
    means = rng.choice(values, (draws, values.size)).mean(axis=1)
    middle = float(values.mean())
    missing = max(LEAST_SPREAD**2 - float(means.var()) / middle**2, 0.0) ** 0.5 if middle > 0 else 0.0
    spread: Floats = means * np.exp(rng.normal(0, missing, draws))
    return spread


def job_start(seconds: Floats, measured_ranks: int, ranks: int, round_s: float = 0.0) -> Floats:
    """From the launch to the first step on ``ranks``, (draws,): ``round_s`` for each doubling of the ranks."""
    started: Floats = seconds + round_s * max(np.log2(ranks / measured_ranks), 0.0)
    return started


def epoch(step_terms: dict[str, Floats], steps: int, events: dict[str, Periodic], ranks: int) -> dict[str, Floats]:
    """Seconds of an epoch by term, (draws,) each, which sum to the epoch: ``steps`` steps, and its events."""
    terms = {name: seconds * steps for name, seconds in step_terms.items()}
    return terms | {name: event.per_epoch_s(ranks) for name, event in events.items()}
