"""What happens once per epoch, and how it depends on the number of ranks.

    epoch = steps · step + evaluation + checkpoint + start of the epoch + what some steps take longer than the others

    evaluation   serial on rank 0: the same for every N (Amdahl's law: it limits the speed-up of an epoch)
                 sharded: T · M ÷ N; the all-reduce of the scores is neglected
    checkpoint   the same for every N: its bytes are those of the model
    epoch start  loaders fill their first batch in parallel on all ranks: the same for every N
    longer steps such as the first of an epoch, beside its start: the same for every N

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
    """One kind of event: ``seconds`` (draws,) per epoch, on ``ranks`` ranks.

    ``is_certain``: how its work is divided was seen; on one rank it cannot be.
    """

    seconds: Floats
    ranks: int
    division: Division
    is_certain: bool = True

    def on(self, ranks: int) -> Floats:
        """Seconds per epoch on ``ranks``, (draws,)."""
        return self.seconds if self.division == "serial" else self.seconds * (self.ranks / ranks)

    def divided(self, division: Division) -> Periodic:
        """The same work, divided otherwise: one rank takes as long as all shares together."""
        factor = {("serial", "sharded"): 1 / self.ranks, ("sharded", "serial"): float(self.ranks)}
        return Periodic(
            seconds=self.seconds * factor.get((self.division, division), 1.0),
            ranks=self.ranks,
            division=division,
        )


def division(by_rank_s: Floats) -> tuple[Division, bool]:
    """How the work of events ``by_rank_s`` (events, ranks) is divided, and whether that can be seen.

    One rank that works while the others do nothing is serial. All ranks alike is sharded; it could also be the same
    work on every rank, which more ranks do not shorten: a run on fewer of them tells. Anything between counts as
    serial, which is the slower answer.

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


def resampled_mean(values: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Bootstrap means of ``values`` (n,), (draws,), with a relative spread of at least ``LEAST_SPREAD``."""
    means = rng.choice(values, (draws, values.size)).mean(axis=1)
    middle = float(values.mean())
    missing = max(LEAST_SPREAD**2 - float(means.var()) / middle**2, 0.0) ** 0.5 if middle > 0 else 0.0
    spread: Floats = means * np.exp(rng.normal(0, missing, draws))
    return spread


def epoch(step_terms: dict[str, Floats], steps: int, events: dict[str, Periodic], ranks: int) -> dict[str, Floats]:
    """Seconds of an epoch by term, (draws,) each, which sum to the epoch: ``steps`` steps, and its events."""
    terms = {name: seconds * steps for name, seconds in step_terms.items()}
    return terms | {name: event.on(ranks) for name, event in events.items()}
