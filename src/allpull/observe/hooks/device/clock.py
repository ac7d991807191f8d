"""Put moments of an accelerator on the host's clock, without ever making one wait for the other.

A device stamps an event after the host asked for it, and before the host sees that it has passed. So the host's clock
is ahead of the device's by at least ``asked − stamped`` and at most ``seen − stamped``: the causal bounds of one-way
messages (Cristian 1989). The lower one is tight, up to the microseconds that a launch takes, whenever the device had
run out of work, so it is what moments are put by. Both clocks are quartz, and bounds widen as they age.
"""

from __future__ import annotations

from typing import Tuple

DRIFT_PPM = 100  # two clocks of ±50 ppm each, which is what crystals are sold as
RESOLUTION_NS = 1_000  # an event is stamped to half a microsecond, and any time here is between two of them

Bound = Tuple[int, int]
"""What the clocks differed by, in ns, and where on the device's clock that was known."""


class DeviceClock:
    """What the host's monotonic clock is ahead of a device's own, learned from its events in their order.

    Positions are ns on the device's clock, from any moment of it.
    """

    def __init__(self) -> None:
        self._least: Bound = (0, 0)
        self._most: Bound = (0, 0)
        self._known = False

    def learn(self, position_ns: int, asked_ns: int, seen_ns: int) -> None:
        """An event stamped at ``position_ns`` was asked for, and was seen to have passed, at these of the host's ns."""
        least, most = asked_ns - position_ns, seen_ns - position_ns
        fits = least <= self._highest(position_ns) + RESOLUTION_NS and most >= self._lowest(position_ns) - RESOLUTION_NS
        if self._known and fits:
            if least >= self._lowest(position_ns):
                self._least = (least, position_ns)
            if most <= self._highest(position_ns):
                self._most = (most, position_ns)
        else:  # the first one; or a clock jumped, and all that was known is wrong
            self._known = True
            self._least, self._most = (least, position_ns), (most, position_ns)

    def offset_ns(self, position_ns: int) -> int:
        """What to add there for the host's clock: as it is if the last lower bound was tight, else too little."""
        return min(self._least[0], self._highest(position_ns))

    def bound_ns(self, position_ns: int, offset_ns: int) -> int:
        """How wrong ``offset_ns`` may be there."""
        excess_ns = offset_ns - self._lowest(position_ns)
        return max(excess_ns, self._highest(position_ns) - offset_ns, 0) + RESOLUTION_NS

    def _lowest(self, position_ns: int) -> int:
        offset, known_at = self._least
        return offset - _drift_ns(position_ns - known_at)

    def _highest(self, position_ns: int) -> int:
        offset, known_at = self._most
        return offset + _drift_ns(position_ns - known_at)


def _drift_ns(age_ns: int) -> int:
    return abs(age_ns) * DRIFT_PPM // 1_000_000 + 1
