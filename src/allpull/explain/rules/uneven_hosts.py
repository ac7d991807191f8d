"""All ranks of one host compute longer than those of the others.

What it is
    A host on which every rank is slow: its processors run at a lower clock (heat, a power limit, an energy-saving
    governor), its memory is populated differently, or it is another model.

How it is found
    Each of its ranks stands out as in `slow-rank`, while at least one other host has no rank that does.

What it costs
    The replay with the work of all its ranks equal to the median of the others.

What to do
    Compare it with the others: `lscpu`, `cpupower frequency-info`, for GPUs `nvidia-smi -q -d CLOCK,PERFORMANCE`.
    Request equal hosts (`sbatch --constraint=…`), or exclude it (`sbatch --exclude=HOST`).

When it is wrong
    With few ranks per host, two ranks that are slow for two reasons look like a slow host.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.cpu_waiting import COMPUTING
from allpull.explain.remedy import sentence, within
from allpull.explain.remedy_text import clocks, equal_hosts, leave_out, quoted
from allpull.replay.whatif.balanced import like_median
from allpull.units import show_time


def find(facts: Facts) -> list[Candidate]:
    """The hosts of which all ranks compute longer."""
    candidates = []
    for host, late in facts.late.slow_hosts:
        ranks = tuple(sorted(one.rank for one in late))
        mean_s = sum(one.size.value for one in late) / len(late)
        candidates.append(
            Candidate(
                rule="uneven-hosts",
                kind="late",
                title=f"All {len(ranks)} ranks of {host} compute {show_time(mean_s)} per step longer than the others",
                remedy=sentence(
                    f"compare {quoted([host])} with the others: ",
                    *("lscpu", ", ", clocks(facts.machine, host), "; use equal hosts"),
                    *(within(": ", equal_hosts(facts.start)), leave_out(facts.start, facts.machine, host)),
                ),
                evidence=(
                    seconds(f"time that ranks of {host} compute beyond the others, mean", mean_s, facts.span),
                    *(seconds(f"of rank {one.rank}", one.size, facts.span) for one in late),
                ),
                without=partial(like_median, ranks=ranks, phases=COMPUTING, unlike=facts.late.computing),
                ranks=ranks,
                hosts=(host,),
            )
        )
    return candidates
