"""What to do against a rank that is slower than the others: where to look, on its host or in its program."""

from __future__ import annotations

from typing import Literal

from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.hosts.binding import has_fewer
from allpull.explain.remedy import Action, sentence, shell
from allpull.explain.remedy_text import clocks, equal_cpus, leave_out, quoted

BETWEEN = "other"
Does = Literal["compute", "sleep", "take"]
"""What a rank does longer than the others; ``take``: which of both is not known."""
OF_RANK_0 = ("optimizer", "host", BETWEEN)
"""Phases in which programs do what only rank 0 does."""


def of_one(rank: int, facts: Facts, where: str, *, does: Does) -> Action:
    """Against one slow rank, which ``does`` something longer than the others, mostly in phase ``where``."""
    first_of_host = rank == facts.machine.ranks_of(facts.machine.hosts[rank])[0]
    rank_0_too = any(one.rank == 0 for one in facts.late.slow)
    if where in OF_RANK_0 and (rank == 0 or (first_of_host and rank_0_too)):
        return sentence(
            f"look for work that only {'rank 0' if rank == 0 else 'local rank 0'} has, under `if rank == 0` or `if "
            "local_rank == 0`: logging, progress bars, metrics, saving; do it less often, or in a thread. It goes with "
            "the rank to any host"
        )
    if does == "sleep":
        return sentence(
            "see what the rank waits for: ",
            shell("py-spy dump --pid PID"),
            ", several times, names the line; a lock, a file, a network or time.sleep, but no CPU",
        )
    if has_fewer(facts.machine, rank):
        return equal_cpus(facts.start, facts.machine)
    host = facts.machine.hosts[rank]
    at_host = (shell("taskset -p PID"), " for its cores", leave_out(facts.start, facts.machine, host))
    if where == BETWEEN and facts.window.paced_s is not None:
        return sentence(
            "see what its program does there, while its accelerator waits: ",
            *(shell("py-spy dump --pid PID"), ", several times, names the line; then top for other programs, "),
            *at_host,
        )
    first = () if does == "compute" else (shell("py-spy dump --pid PID"), ", several times, names the line; then ")
    return sentence(
        f"check what differs on {quoted([host]) if host else 'its host'}: ",
        *first,
        *(clocks(facts.machine, host), " for clocks and heat, top for other programs, "),
        *at_host,
    )


def of_many(ranks: list[int], facts: Facts) -> Action:
    """Against several slow ranks."""
    hosts = facts.hosts_of(ranks)
    return sentence(
        "check what they have in common: work that only they have in the program, the cores and memory they are bound "
        "to (",
        *(shell("taskset -p PID"), ", ", shell("numactl --show"), "), the place in the host; "),
        *(clocks(facts.machine, *hosts), " for clocks and heat"),
    )
