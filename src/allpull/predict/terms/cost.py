"""What a job costs: a price per rank-hour, or per host-hour, times the ranks, or hosts, times its hours."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allpull.errors import BadInput

Floats = npt.NDArray[np.float64]
Number = float | Floats

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price of an hour, in any currency; ``per_host``: of a host, whose ranks cost nothing besides."""

    per_hour: float
    per_host: bool = False

    def __post_init__(self) -> None:
        """Raises BadInput where the price is negative or none."""
        if not (math.isfinite(self.per_hour) and self.per_hour >= 0):
            raise BadInput("a price is 0 or more", hint="such as --price 2.50")

    def cost(self, time_s: Number, *, ranks: int, hosts: int) -> Floats:
        """What a job of ``time_s`` costs; a begun hour is not rounded up.

        >>> float(Price(per_hour=2.5).cost(7200.0, ranks=8, hosts=1))
        40.0
        >>> float(Price(per_hour=30.0, per_host=True).cost(60.0, ranks=8, hosts=2))
        1.0
        """
        hours = np.asarray(time_s) / SECONDS_PER_HOUR
        return np.asarray(hours * self.per_hour * (hosts if self.per_host else ranks))
