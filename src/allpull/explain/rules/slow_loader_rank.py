"""One rank waits for its data longer than the others, and all of them wait for it.

What it is
    The loader of one rank is behind: a slow disk or network mount on its host, fewer workers, other files.

How it is found
    By its time in `input` against the median of the other ranks in each step, as in `slow-rank`. What all ranks wait
    for their loaders is `input-bound`.

What it costs
    The replay with the input of this rank like the median of the others'.

What to do
    Look at what that host reads from: `findmnt`, `iostat -x 1`, the number of workers. Stage the data on local disks,
    or make shards of equal size.

When it is wrong
    Where the loader runs in the main process (`num_workers=0`), a slow processor looks like a slow loader.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.facts import Facts
from allpull.explain.persistent import Outstanding
from allpull.explain.rules.slow_rank import waited
from allpull.explain.suspect import Suspect, seconds
from allpull.replay.whatif import like_median
from allpull.units import show_time


def find(facts: Facts) -> list[Suspect]:
    """The ranks whose loaders are behind."""
    return [_suspect(one, facts) for one in facts.late.loaders]


def _suspect(one: Outstanding, facts: Facts) -> Suspect:
    often = "" if one.steady else " now and then"
    host = facts.machine.hosts[one.rank] or "its host"
    return Suspect(
        rule="slow-loader-rank",
        kind="late",
        title=f"{facts.on(one.rank)} waits {show_time(one.size.value)} a step longer for its data "
        f"than the others{often}",
        remedy=f"see what {host} reads from (findmnt, iostat -x 1) and with how many workers; copy its data to a local "
        f"disk, or give that rank more of them: DataLoader(num_workers=…)",
        evidence=(
            seconds(f"how much longer rank {one.rank} waits for its loader than the others", one.size, facts.span),
            seconds("what it waits in all", float(facts.mean_s("input")[one.rank]), facts.span),
            *waited(one.rank, facts),
        ),
        without=partial(like_median, ranks=(one.rank,), phases=("input",)),
        ranks=(one.rank,),
    )
