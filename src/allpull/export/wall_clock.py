"""Place moments of the shared clock on the wall clock of one host, so that curves of all ranks line up.

Wall clocks of hosts differ by milliseconds; the shared clock does not (``analyse.clock``). So one host's pair of
readings serves all ranks. It was taken when its first rank began; what NTP changed since then is not followed.
"""

from __future__ import annotations

import polars as pl

from allpull.analyse.aligned import AlignedRun
from allpull.units import NS_PER_S


def unix_s(aligned: AlignedRun, moment: str) -> pl.Expr:
    """The column ``moment`` (ns of the shared clock) of rows with a column ``rank`` as Unix time in seconds.

    Null where that rank has no clock, and clocks of ranks do not compare.
    """
    offsets_ns = offsets(aligned)
    if aligned.clock.alignment is None and aligned.clock.compares:
        offset_ns = next(iter(offsets_ns.values()), None)
        return (pl.col(moment) + pl.lit(offset_ns, dtype=pl.Int64)) / NS_PER_S
    own = pl.col("rank").replace_strict(offsets_ns, default=None, return_dtype=pl.Int64)
    return (pl.col(moment) + own) / NS_PER_S


def offsets(aligned: AlignedRun) -> dict[int, int]:
    """For each rank with records, real time minus the shared clock, in ns: one number where clocks compare."""
    headers = dict(sorted(aligned.data.headers.items()))
    own = {rank: header.clock.realtime_ns - header.clock.monotonic_ns for rank, header in headers.items()}
    if not aligned.clock.compares or not own:
        return own
    alignment = aligned.clock.alignment
    if alignment is None:
        return dict.fromkeys(own, next(iter(own.values())))
    reference = next((rank for rank, header in headers.items() if header.host == alignment.reference), None)
    if reference is not None:
        return dict.fromkeys(own, own[reference])
    rank, header = next(iter(headers.items()))
    moment = pl.DataFrame({"rank": [rank], "t_ns": [header.clock.monotonic_ns]})
    shared_ns: int = aligned.clock.shared(moment, ("t_ns",))["t_ns"].item()
    return dict.fromkeys(own, header.clock.realtime_ns - shared_ns)
