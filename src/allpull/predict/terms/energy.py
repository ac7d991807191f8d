"""Energy of a job: J = t (N P_rank + hosts · P_host), with P of the whole time that it runs, waiting included."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allpull.errors import BadInput

Floats = npt.NDArray[np.float64]
Number = float | Floats

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Power:
    """Mean power of one rank with its device in W, shape (draws,) or a number; ``host_w`` is that of a host besides.

    A mean that was measured at one size holds at another only as far as ranks wait as much there: waiting takes less.
    """

    rank_w: Number
    host_w: Number = 0.0

    def __post_init__(self) -> None:
        """Raises BadInput where a power is negative or none."""
        if not all((np.isfinite(one) & (np.asarray(one) >= 0)).all() for one in (self.rank_w, self.host_w)):
            raise BadInput("power is 0 W or more", hint="such as --watts 300")

    def energy_j(self, time_s: Number, *, ranks: int, hosts: int) -> Floats:
        """Energy of a job of ``time_s``.

        >>> float(Power(rank_w=300.0, host_w=600.0).energy_j(3600.0, ranks=8, hosts=1)) / JOULES_PER_KWH
        3.0
        """
        return np.asarray(time_s * (ranks * np.asarray(self.rank_w) + hosts * np.asarray(self.host_w)))
