"""Ranks wait for a CPU: there are more threads that could run than there are cores for them.

What it is
    Another program on the host, ranks bound to the same cores, or more threads and loader workers than cores. The
    computation is right and slow, and it looks like a slow network to whoever only sees the collectives.

How it is found
    By the kernel's own count (`schedstat`) of how long the thread that trains could run and had no CPU, step by step.
    It is taken off what the rank computes before ranks are compared, and a rank is named whose wait stands out by a
    twentieth of the step, a quarter of it surely while it computed. Where at least half of the ranks wait for a tenth
    of the time, all are told. In runs recorded without it, with accelerators, and in rehearsals it is the sum over all
    threads of a rank, as its host counts them: a late rank that waited twice as long as the others, and for most of its
    lateness; or all ranks, for a quarter of the time.

What it costs
    The replay with computing shortened by what was waited. Where all wait alike, that is an upper bound, and said to
    be one: a thread may also have been late to leave a collective, which is no computing; in sums over threads, helpers
    may wait without holding anybody up. With accelerators, only what they wait for their hosts can become shorter.

What to do
    Give every rank cores of its own: `--set launch.bind=cores`, `srun --cpu-bind=cores --cpus-per-task=…`,
    `sbatch --exclusive`; or fewer threads: `OMP_NUM_THREADS`, `num_workers`.

When it is wrong
    Threads that the thread which trains waits for (OpenMP's, the loader's) may wait for a CPU, too: what that costs
    counts as computing of the rank, or as its loader. In a rehearsal all ranks share one machine, whose own crowding is
    no fault of the cluster: there only a host that waits longer than the others is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.evidence.cpu_waiting import (
    COMPUTING,
    CROWDED,
    all_wait,
    is_told,
    per_step,
    shortened,
    waiting_share,
)
from allpull.explain.evidence.facts import Facts
from allpull.explain.pricing.candidate import Suspect, Without, as_recorded, seconds, share
from allpull.replay.whatif import like_median, scaled
from allpull.schema.explained import Evidence
from allpull.units import show_time

ON_CPUS = ("forward", "backward", "optimizer")
ON_HOSTS = ("copy", "host")  # of ranks with accelerators, which do the computing
AT_MOST = 0.9  # of computing: the rest it had a CPU, for it came to its end


def find(facts: Facts) -> list[Suspect]:
    """The ranks that are late because they wait for a CPU; else all of them, where all wait."""
    shares = waiting_share(facts.window, facts.machine)
    if shares is None:
        return []
    if facts.late.contended:
        return [_some(facts, shares)]
    crowded = facts.crowded_share
    return [_all(facts, crowded)] if crowded is not None and all_wait(facts.window, facts.machine) else []


def _some(facts: Facts, shares: Floats) -> Suspect:
    late = facts.late.contended
    ranks = tuple(sorted(one.rank for one in late))
    hosts = facts.hosts_of(ranks)
    named = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(str(rank) for rank in ranks)}"
    what, source = _counted(facts)
    told = is_told(facts.window, facts.machine)
    longer = "have no CPU while they compute" if told else "compute"
    without = (
        partial(shortened, gone_s={one.rank: one.size.value for one in late})
        if told
        else partial(like_median, ranks=ranks, phases=COMPUTING, unlike=facts.late.computing)
    )
    return Suspect(
        rule="cpu-contention",
        kind="late",
        title=f"{named} on {', '.join(hosts) or 'this machine'} had to wait for a CPU, and the others waited for them",
        remedy="give each rank cores of its own: --set launch.bind=cores, srun --cpu-bind=cores, sbatch --exclusive; "
        "see with top what else runs there",
        options=("launch.bind",),
        evidence=(
            seconds(
                f"how much longer they {longer} than the median of the others",
                max((one.size for one in late), key=lambda size: size.value),
                facts.span,
            ),
            *(share(f"of its time {what} of rank {rank} had none", float(shares[rank]), source) for rank in ranks),
            share("the same of the median of the others", _of_others(shares, ranks), source),
        ),
        without=without,
        ranks=ranks,
        hosts=tuple(hosts),
    )


def _of_others(shares: Floats, ranks: tuple[int, ...]) -> float:
    return float(np.median(np.delete(shares, ranks)))


def _all(facts: Facts, crowded: float) -> Suspect:
    waited_s = crowded * facts.step_s
    without = _uncrowded(facts, waited_s)
    what, source = _counted(facts)
    return Suspect(
        rule="cpu-contention",
        kind="job",
        title=f"The ranks wait {show_time(waited_s)} a step for a CPU, all of them",
        remedy="give each rank cores of its own: --set launch.bind=cores, srun --cpu-bind=cores --cpus-per-task=…, "
        "sbatch --exclusive; or fewer threads: OMP_NUM_THREADS, num_workers",
        options=("launch.bind", "OMP_NUM_THREADS"),
        evidence=(
            seconds(f"how long {what} of the median rank could run and had none", waited_s, source),
            *_cpus(facts),
        ),
        without=without,
        bounds=(as_recorded, without),
        least_share=CROWDED / 2,
    )


def _counted(facts: Facts) -> tuple[str, str]:
    """Which threads were counted, and where that comes from."""
    if is_told(facts.window, facts.machine):
        return "the thread that trains", f"schedstat of that thread in {facts.span}"
    return "the threads", "schedstat of the ranks"


def _cpus(facts: Facts) -> tuple[Evidence, ...]:
    busy: Mapping[str, float | None] = {host: facts.machine.busy_share(host) for host in facts.machine.host_names}
    return tuple(
        share(f"of the CPUs of {host} its ranks keep busy", value, "CPU time of the ranks")
        for host, value in busy.items()
        if value is not None
    )


def _uncrowded(facts: Facts, waited_s: float) -> Without:
    """What takes CPUs is shorter by ``waited_s`` a step, as far as it goes, on all ranks."""
    phases = ON_HOSTS if "host" in facts.window.work else ON_CPUS
    on_cpus_s = per_step(facts.window, phases).mean(axis=0)
    gone_s = np.minimum(waited_s, AT_MOST * on_cpus_s)
    left: Floats = 1 - np.divide(gone_s, on_cpus_s, out=np.zeros_like(on_cpus_s), where=on_cpus_s > 0)
    return partial(scaled, phases=phases, factor=left)
