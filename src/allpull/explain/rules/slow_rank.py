"""One rank computes longer than the others, step after step, and all of them wait for it.

What it is
    Synchronous training goes at the pace of its slowest rank. A processor that runs at a lower clock, shares its memory
    or its cores with somebody, or does work that the others do not have (logging, saving, debugging) holds up all.

How it is found
    By its own work: copies, forward, backward without the collectives in it, optimizer and what stands between phases,
    against the median of the other ranks in each step. It stands out if its mean excess is larger than chance makes
    the largest one when ranks are relabelled at random. What the others wait for is not needed for that, so a delay
    inside backward is not taken for a slow network, nor a slow network for a late rank. What more samples, a slow
    loader or a crowded CPU explain is left to their own rules, and so is a whole host of slow ranks.

What it costs
    The replay with this rank's work like the median of the others': less than the excess where a busy network hides
    part of it. Ranks that are late at the same time hide each other; each is priced with the others mended.

What to do
    See what that host does otherwise: clocks and temperature (`nvidia-smi -q -d CLOCK,PERFORMANCE`), other processes
    (`top`), binding to cores and memory. Until it is mended, leave it out: `sbatch --exclude=HOST`.

When it is wrong
    Where the data of one rank are harder, in longer sentences or larger pictures, the rank is slow by its share of the
    work and not by its host: move ranks to other hosts, and see whether the lateness stays with the rank.
"""

from __future__ import annotations

from functools import partial

from allpull.analyse.window import Window
from allpull.explain.facts import Facts
from allpull.explain.late import COMPUTING, per_step
from allpull.explain.persistent import Outstanding, by_phase
from allpull.explain.suspect import Suspect, Without, count, seconds
from allpull.replay.whatif import like_median, scaled
from allpull.schema.explained import Evidence
from allpull.units import show_time

WHERE = {
    "copy": "copying to the device",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer",
    "host": "issuing work",
    "other": "between its phases",
    "input": "in its loader",
}


def find(facts: Facts) -> list[Suspect]:
    """The ranks that compute longer than the others."""
    return [_suspect(one, facts) for one in facts.late.slow]


def _suspect(one: Outstanding, facts: Facts) -> Suspect:
    where, _ = next(iter(excess(one.rank, facts).items()))
    often = "" if one.steady else " now and then"
    host = facts.machine.hosts[one.rank]
    leave = f"; until then leave it out: sbatch --exclude={host}" if len(facts.machine.host_names) > 1 else ""
    return Suspect(
        rule="slow-rank",
        kind="late",
        title=f"{facts.on(one.rank)} computes {show_time(one.size.value)} a step longer than the others"
        f"{often}, most of it {WHERE[where]}",
        remedy=f"see what {host or 'its host'} does otherwise: nvidia-smi -q -d CLOCK,PERFORMANCE for clocks and heat, "
        f"top for other programs, taskset -p for its cores{leave}",
        evidence=(
            seconds(f"how much longer rank {one.rank} computes than the median of the others", one.size, facts.span),
            *(
                seconds(f"of it {WHERE[name]}", value, facts.span)
                for name, value in excess(one.rank, facts).items()
                if value > facts.floor_s
            ),
            *waited(one.rank, facts),
        ),
        without=_without(one, facts),
        ranks=(one.rank,),
    )


def excess(rank: int, facts: Facts) -> dict[str, float]:
    """By how much ``rank`` exceeds the others in each phase of computing, s a step, the largest first."""
    return by_phase({name: facts.window.per_step(name) for name in COMPUTING if name in facts.window.work}, rank)


def waited(rank: int, facts: Facts) -> tuple[Evidence, ...]:
    """What the others waited for ``rank``, and how often it was the last."""
    if facts.blame is None:
        return ()
    steps = max(1, facts.window.steps.size)
    victims = max(1, facts.window.ranks - 1)
    caused_s = float(facts.blame.caused_s[rank].sum()) / steps / victims
    return (
        seconds(f"what each other rank waited for rank {rank}", caused_s, f"collectives of {facts.span}"),
        count(f"meetings of {facts.blame.meetings:,} to which it came last", int(facts.blame.last[rank]), facts.span),
    )


def _without(one: Outstanding, facts: Facts) -> Without:
    """Its work like that of the others; of a rank that has more samples as well, only what these do not explain."""
    more_s = sum(uneven.size.value for uneven in facts.late.uneven if uneven.rank == one.rank)
    if not more_s:
        return partial(like_median, ranks=(one.rank,), phases=COMPUTING)
    own_s = float(per_step(facts.window, COMPUTING)[:, one.rank].mean()) - more_s
    factor = max(0.0, 1 - one.size.value / own_s) if own_s > 0 else 1.0

    def without(window: Window) -> Window:
        return scaled(window, COMPUTING, factor, (one.rank,))

    return without
