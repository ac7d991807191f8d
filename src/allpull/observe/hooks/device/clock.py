"""Convert moments of an accelerator to the host's clock, without making either wait for the other.

A device stamps an event after the host enqueued it, and before the host observes that it has completed. So the host's
clock is ahead of the device's by at least ``asked − stamped`` and at most ``seen − stamped``: the causal bounds of
one-way messages (Cristian 1989). The lower bound is tight, up to the microseconds of a launch, whenever the device was
idle, so it is the one that converts moments. Both clocks drift, so bounds widen with age, until an event on an idle
stream shows the offset again (``timing``): a step is resolved after it ran, and then has one at most half a second away
on either side.
"""

from __future__ import annotations

from typing import Tuple

DRIFT_PPM = 100  # two clocks of ±50 ppm each, the usual tolerance of crystals
RESOLUTION_NS = 1_000  # events are stamped to half a microsecond, and a time is between two of them

Bound = Tuple[int, int]
"""The difference of the clocks, in ns, and the position on the device's clock at which it was known."""


class DeviceClock:
    """How far the host's monotonic clock is ahead of a device's, learned from its events in their order.

    Positions are ns on the device's clock, from an arbitrary origin.
    """

    def __init__(self) -> None:
        self._least: Bound = (0, 0)
        self._most: Bound = (0, 0)
        self._known = False

    def learn(self, position_ns: int, asked_ns: int, seen_ns: int) -> None:
        """Learn from an event at ``position_ns``, enqueued at ``asked_ns`` and observed complete at ``seen_ns``."""
        least, most = asked_ns - position_ns, seen_ns - position_ns
        fits = least <= self._highest(position_ns) + RESOLUTION_NS and most >= self._lowest(position_ns) - RESOLUTION_NS
        if self._known and fits:
            if least >= self._lowest(position_ns):
                self._least = (least, position_ns)
            if most <= self._highest(position_ns):
                self._most = (most, position_ns)
        else:  # the first event; or a clock jumped, and earlier bounds are invalid
            self._known = True
            self._least, self._most = (least, position_ns), (most, position_ns)

    def offset_ns(self, position_ns: int) -> int:
        """What to add there for the host's clock: exact if the last lower bound was tight, else too small."""
        return min(self._least[0], self._highest(position_ns))

    def bound_ns(self, position_ns: int, offset_ns: int) -> int:
        """The error bound of ``offset_ns`` there."""
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
