"""Put the moments of all ranks on one clock, where that is possible, with a bound on the error.

Ranks of one boot share a monotonic clock exactly. Ranks of several hosts are aligned by the pings between these hosts
(``analyse.clock.host_clocks``) or by their headers, where clocks were compared after the run (``importers.clocks``); a
wait between two ranks can then be wrong by the bounds of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from allpull.analyse.clock.host_clocks import Alignment, HostClock, align, through
from allpull.analyse.statistics import evenly
from allpull.schema.steps import StepsHeader
from allpull.units import NS_PER_S

ALONE = "alone"  # the name of the one clock that all ranks share
MAX_NS = 2**62  # of moments and offsets: differences of two such fit 64 bits
MAX_LOOKS = 1000  # moments of a host at which the bound is looked up: it changes slowly


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedClock:
    """The clock on which moments of all ranks compare.

    ``host_of`` names the host whose clock each rank has; ``alignment`` is None where that is the same for all, or
    where hosts cannot be aligned. ``bound_s`` is how wrong the time between two ranks may be; None: they do not
    compare.
    """

    host_of: Mapping[int, str]
    alignment: Alignment | None
    bound_s: float | None

    @property
    def compares(self) -> bool:
        """Whether moments of different ranks compare."""
        return self.bound_s is not None

    @property
    def slack_ns(self) -> int:
        """``bound_s`` in whole ns, rounded up; 0 where moments do not compare."""
        return int(np.ceil((self.bound_s or 0.0) * NS_PER_S))

    def shared(self, records: pl.DataFrame, moments: Sequence[str]) -> pl.DataFrame:
        """``records`` (with a column ``rank``) with the columns ``moments`` on this clock; nulls stay null.

        All moments of one row are shifted by the offset at the first one, so that no duration within it changes.
        """
        if self.alignment is None or records.is_empty():
            return records
        first_ns = records[moments[0]].to_numpy()
        ranks = records["rank"].to_numpy()
        offset_ns = np.zeros(first_ns.size, dtype=np.int64)
        for host, rows in _rows_by_host(self.host_of, ranks).items():
            offset_ns[rows] = self.alignment.offset_ns(host, first_ns[rows])
        return records.with_columns(pl.col(name) - pl.Series(offset_ns) for name in moments)


def shared_clock(headers: Mapping[int, StepsHeader], pings: pl.DataFrame, steps: pl.DataFrame) -> SharedClock:
    """The clock that the ranks of ``headers`` share, or to which ``pings`` align them.

    Args:
        headers: by rank.
        pings: columns of ``rundir.read.counters.PINGS_SCHEMA``.
        steps: columns rank and begin_ns: the times at which moments are compared, for the bound on their error.
    """
    if share_a_clock(headers.values()):
        return SharedClock(host_of=dict.fromkeys(headers, ALONE), alignment=None, bound_s=0.0)
    alignment = compared_after(headers.values()) or align(pings, sorted({header.host for header in headers.values()}))
    host_of = _aligned_hosts(headers, alignment)
    if len(host_of) < len(headers):
        return SharedClock(host_of={}, alignment=None, bound_s=None)
    begin_ns = steps["begin_ns"].to_numpy()
    bounds_s = [
        _largest_bound_s(alignment, host, begin_ns[rows])
        for host, rows in _rows_by_host(host_of, steps["rank"].to_numpy()).items()
    ]
    return SharedClock(host_of=host_of, alignment=alignment, bound_s=sum(sorted(bounds_s)[-2:]))


def compared_after(headers: Iterable[StepsHeader]) -> Alignment | None:
    """The clocks of hosts as the headers of their ranks have them; None where no header has any.

    The reference is the host that most others were compared against. Impossible comparisons (out of order, too far
    apart, a negative bound) are left out.
    """
    compared = [header for header in headers if header.compared is not None]
    references = Counter(header.compared.against for header in compared if header.compared is not None)
    if not references:
        return None
    reference = max(references, key=lambda host: (references[host], host))
    clocks: dict[str, HostClock] = {}
    for header in compared:
        if header.compared is None or header.compared.against != reference or header.host in {reference, *clocks}:
            continue
        looks = np.array(header.compared.looks, dtype=np.int64).reshape(-1, 3)
        at_ns, offset_ns, bound_ns = looks.T
        moves = (np.diff(at_ns.astype(np.float64)) > 0).all() and (np.abs(looks.astype(np.float64)) < MAX_NS).all()
        if len(looks) and moves and (bound_ns >= 0).all():
            clocks[header.host] = through(at_ns=at_ns, offset_ns=offset_ns, half_ns=bound_ns.astype(np.float64))
    hosts = dict.fromkeys(header.host for header in compared)
    unpinged = tuple(host for host in hosts if host != reference and host not in clocks)
    return Alignment(reference=reference, clocks=clocks, unpinged=unpinged)


def share_a_clock(headers: Iterable[StepsHeader]) -> bool:
    """Whether the times of all these ranks come from one monotonic clock: one boot of one host.

    Where the system does not report a boot id, the host name identifies the boot.
    """
    return len({_clock_of(header) for header in headers}) <= 1


def _clock_of(header: StepsHeader) -> tuple[str | None, str | None]:
    return header.boot_id, header.host if header.boot_id is None else None


def _aligned_hosts(headers: Mapping[int, StepsHeader], alignment: Alignment) -> dict[int, str]:
    """The aligned host whose clock each rank has: containers of one boot have several names and one clock.

    A name that several machines share identifies none of them.
    """
    owners = Counter(host for host, _ in {(header.host, _clock_of(header)) for header in headers.values()})
    named = {
        _clock_of(header): header.host
        for header in headers.values()
        if header.host in alignment and owners[header.host] == 1
    }
    return {rank: named[clock] for rank, header in headers.items() if (clock := _clock_of(header)) in named}


def _rows_by_host(host_of: Mapping[int, str], ranks: NDArray[np.int64]) -> dict[str, NDArray[np.intp]]:
    """For each host that has any, the places in ``ranks`` of its ranks, in order; ranks without a host have none."""
    if not host_of:
        return {}
    hosts = list(dict.fromkeys(host_of.values()))
    number_of = {host: number for number, host in enumerate(hosts)}
    known = np.array(sorted(host_of), dtype=np.int64)
    own = np.array([number_of[host_of[rank]] for rank in known.tolist()], dtype=np.int64)
    place = np.minimum(np.searchsorted(known, ranks), known.size - 1)
    numbers = np.where(known[place] == ranks, own[place], len(hosts))
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(len(hosts)), side="right")
    parts = zip(hosts, np.concatenate([[0], ends[:-1]]).tolist(), ends.tolist(), strict=True)
    return {host: order[begin:end] for host, begin, end in parts if end > begin}


def _largest_bound_s(alignment: Alignment, host: str, t_ns: NDArray[np.int64]) -> float:
    looks = np.sort(t_ns)[evenly(range(t_ns.size), MAX_LOOKS)]
    return float(alignment.bound_s(host, looks).max()) if looks.size else 0.0
