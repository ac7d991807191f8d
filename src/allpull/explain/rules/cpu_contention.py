"""Ranks wait for a CPU: more threads are runnable than there are cores.

What it is
    Another program on the host, ranks bound to the same cores, or more threads and loader workers than cores. The
    computation is correct but slow; the collectives alone would suggest a slow network.

How it is found
    By the kernel's own count (`schedstat`) of how long the training thread was runnable without a CPU, step by step. It
    is subtracted from the computation of each rank before ranks are compared; what a rank waits during its own stalls
    is part of these (`slow-rank`). A rank is named if its waiting stands out by a twentieth of the step, a quarter of
    which is certain to fall into its computation. Where at least half of the ranks wait for a tenth of the time, the
    finding names all ranks. In runs recorded without this count, with accelerators, and in rehearsals, the sum over all
    threads of a rank, as its host counts them, takes its place: the finding names a late rank that waited twice as long
    as the others, and for most of its lateness; or all ranks, if they waited for at least a quarter of the time.

What it costs
    The replay with computation shortened by the time waited. Where all ranks wait, that is an upper bound, and is
    reported as one: it is without all waiting of each rank in each step, but the thread may also have been late to
    leave a collective, which is not computation; and in sums over threads, helper threads may wait without delaying
    anything. With accelerators, only the time that they wait for their hosts can become shorter. Within one host whose
    ranks exchange less than 50 MB/s, the exchange waits for CPUs, too, and the bound includes it.

What to do
    Where ranks may run on half of the CPUs of their host or less, or one of them on far fewer than the others, by the
    affinity that they recorded: let them run on more. `srun` gives a task one CPU unless told otherwise
    (`--cpus-per-task`), and `mpirun` a rank one core (`--bind-to none`); `taskset` and `os.sched_setaffinity` do the
    same. Where other programs keep the CPUs busy, which the evidence tells apart from the job's own use: run when they
    have ended, on other hosts, or alone (`sbatch --exclusive`). Otherwise start no more ranks and threads than there
    are CPUs: `--nproc-per-node` of torchrun, `--set launch.threads=N` where allpull starts the ranks, `OMP_NUM_THREADS`
    elsewhere. Or give every rank its own cores: `--set launch.bind=cores`, `srun --cpu-bind=cores`, `mpirun --bind-to
    core`, or `os.sched_setaffinity` at the top of the program.

When it is wrong
    Threads on which the training thread waits (those of OpenMP or of the loader) may wait for a CPU, too: that cost
    counts as computation or input of the rank. In a rehearsal all ranks share one machine, and its contention is not a
    fault of the cluster: there only a rank that waits longer than the others is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from allpull.analyse.steps.grid import Floats
from allpull.explain.candidate import Candidate, Removal, as_recorded, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.host_overhead import exchange_waits_for_cpus, has_small_buckets
from allpull.explain.evidence.hosts.binding import confined, confinement, fewer_cpus, has_fewer
from allpull.explain.evidence.late.cpu_waiting import (
    COMPUTING,
    CROWDED,
    all_wait,
    held_up,
    is_known_per_step,
    is_work,
    per_step,
    shortened,
    waiting_share,
)
from allpull.explain.remedy import Action, joined, sentence, within
from allpull.explain.remedy_text import (
    CAP_MIB,
    bucket_size,
    equal_cpus,
    exclusive,
    fewer_ranks,
    more_cpus,
    own_cores,
    quoted,
    threads,
)
from allpull.replay.whatif.balanced import like_median
from allpull.replay.whatif.network import without_transfer
from allpull.replay.whatif.work import scaled, shortened_by_step
from allpull.replay.window import Window
from allpull.schema.explained import Evidence
from allpull.units import percent, show_time

OWN_PROGRAM = 0.5  # of the CPUs: a job that keeps fewer busy has enough of them once it is alone
ON_CPUS = ("forward", "backward", "optimizer")
ON_HOSTS = ("copy", "host")  # of ranks whose accelerators compute
EACH_ITS_OWN = "give each rank its own cores: "
AT_MOST = 0.9  # of computation: for the remaining tenth it had a CPU, or it would not have ended


def find(facts: Facts) -> list[Candidate]:
    """The ranks that are late because they wait for a CPU; otherwise all of them, where all wait."""
    shares = waiting_share(facts.window, facts.machine)
    if shares is None:
        return []
    if facts.late.contended:
        return [_some(facts, shares)]
    crowded = facts.crowded_share
    return [_all(facts, crowded, shares)] if crowded is not None and all_wait(facts.window, facts.machine) else []


def _some(facts: Facts, shares: Floats) -> Candidate:
    late = facts.late.contended
    ranks = tuple(sorted(one.rank for one in late))
    hosts = facts.hosts_of(ranks)
    named = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {', '.join(str(rank) for rank in ranks)}"
    what, source = _counted(facts)
    per_step_known = is_known_per_step(facts.window, facts.machine)
    counted = "time without a CPU while computing" if per_step_known else "time of computation"
    without: Removal = partial(like_median, ranks=ranks, phases=COMPUTING, unlike=facts.late.computing)
    bounds: tuple[Removal, Removal] | None = None
    if per_step_known:
        without, bounds = _without_waiting(facts)
    if any(has_fewer(facts.machine, rank) for rank in ranks):
        cores = equal_cpus(facts.start, facts.machine)
    else:
        cores = within(EACH_ITS_OWN, own_cores(facts.start, facts.machine, ranks))
    others = _from_others(facts, hosts)
    check = Action() if others else sentence("check with top what else runs there")
    remedy = joined("; ", others, cores, check)
    return Candidate(
        rule="cpu-contention",
        kind="late",
        title=f"{named} on {', '.join(hosts) or 'this machine'} waited for a CPU, and the others waited for "
        f"{'it' if len(ranks) == 1 else 'them'}",
        remedy=remedy,
        evidence=(
            seconds(
                f"{counted}, beyond the median of the others",
                max((one.size for one in late), key=lambda size: size.value),
                facts.span,
            ),
            *(
                share(f"share of its time that {what} of rank {rank} waited for a CPU", float(shares[rank]), source)
                for rank in ranks
            ),
            share("the same for the median of the others", _median_of_others(shares, ranks), source),
            *fewer_cpus(facts.machine, ranks),
            *_cpus(facts, hosts),
        ),
        without=without,
        bounds=bounds,
        ranks=ranks,
        hosts=tuple(hosts),
    )


def _without_waiting(facts: Facts) -> tuple[Removal, tuple[Removal, Removal] | None]:
    """The removal of what ranks waited for CPUs, and of the least and the most that it may have been.

    The mean is one number, in which no step varies. At the level of steps bounds have another reason.
    """

    def less(each_s: Iterable[float | None]) -> Removal:
        sizes = zip(facts.late.contended, each_s, strict=True)
        gone_s = {one.rank: one.size.value if size_s is None else size_s for one, size_s in sizes}
        return partial(shortened, gone_s=gone_s, evenly=facts.late.stalled.late)

    sizes = [one.size for one in facts.late.contended]
    least, most = less(size.low for size in sizes), less(size.high for size in sizes)
    return less(size.value for size in sizes), None if facts.window.level == "step" else (least, most)


def _median_of_others(shares: Floats, ranks: tuple[int, ...]) -> float:
    return float(np.median(np.delete(shares, ranks)))


def _all(facts: Facts, crowded: float, shares: Floats) -> Candidate:
    waited_s = crowded * facts.step_s
    without = _uncrowded(facts, shares)
    if exchange_waits_for_cpus(facts):
        without = partial(_exchanged_at_once, uncrowded=without)
    what, source = _counted(facts)
    return Candidate(
        rule="cpu-contention",
        kind="job",
        title=f"{facts.all_ranks('wait')} {show_time(waited_s)} per step for a CPU{_cause(facts)}",
        remedy=_remedy(facts),
        evidence=(
            seconds(f"time that {what} of the median rank waited for a CPU", waited_s, source),
            *confinement(confined(facts.machine)),
            *_cpus(facts, facts.machine.host_names),
        ),
        without=without,
        bounds=(as_recorded, without),
        least_share=CROWDED / 2,
    )


def _counted(facts: Facts) -> tuple[str, str]:
    """Which threads were counted, and the source of the count."""
    if is_known_per_step(facts.window, facts.machine):
        return "the training thread", f"schedstat of that thread in {facts.span}"
    return "the threads", "schedstat of the ranks"


def _cpus(facts: Facts, hosts: Sequence[str]) -> tuple[Evidence, ...]:
    machine = facts.machine
    own = {f"share of the CPUs of {host} that its ranks keep busy": machine.busy_share(host) for host in hosts}
    other = {f"share of the CPUs of {host} that other programs keep busy": machine.other_share(host) for host in hosts}
    return (
        *(share(what, value, "CPU time of the ranks") for what, value in own.items() if value is not None),
        *(share(what, value, "counters of the hosts") for what, value in other.items() if value is not None),
    )


def _cause(facts: Facts) -> str:
    """Why there are too few CPUs, to append to a title; empty where it is the job itself, or not known."""
    few = confined(facts.machine)
    if few is not None:
        return f": they may run on only {few.cpus:,} of the {few.of:,} CPUs of {few.host}"
    disturbed = facts.machine.disturbed(facts.machine.host_names)
    where = "" if len(facts.machine.host_names) == 1 else f" of {', '.join(disturbed)}"
    return f": other programs keep {percent(max(disturbed.values()))} of the CPUs{where} busy" if disturbed else ""


def _from_others(facts: Facts, hosts: Sequence[str]) -> Action:
    """How to be alone on ``hosts``; empty where other programs do not disturb the job."""
    disturbed = list(facts.machine.disturbed(hosts))
    if not disturbed:
        return Action()
    alone = exclusive(facts.start)
    how = within("keep them away: ", alone) or "run when they have ended, or on other hosts"
    return sentence(f"see which other programs run on {quoted(disturbed)} (top); ", how)


def _remedy(facts: Facts) -> Action:
    """How to have a CPU for each thread: without other programs, and with no more threads of its own than CPUs."""
    start, machine, few = facts.start, facts.machine, confined(facts.machine)
    others = _from_others(facts, machine.host_names)
    if few is not None:
        wider = within("let them run on more CPUs: ", more_cpus(start, machine, few))
        return joined("; or ", wider, others, fewer_ranks(start, machine))
    buckets = bucket_size(start, CAP_MIB) if exchange_waits_for_cpus(facts) and has_small_buckets(facts) else Action()
    exchange = within("exchange gradients in fewer buckets: ", buckets)
    shares = [machine.busy_share(host) or 0.0 for host in machine.host_names]
    if others and max(shares) < OWN_PROGRAM:
        return joined("; ", exchange, others)
    fewer = joined(", ", fewer_ranks(start, machine), threads(start, machine))
    cores = Action() if fewer else within(EACH_ITS_OWN, own_cores(start, machine))
    alone = Action() if others else within("keep other jobs away: ", exclusive(start))
    return joined("; ", exchange, others, within("start fewer threads: ", fewer), cores, alone)


def _exchanged_at_once(window: Window, uncrowded: Removal) -> Window:
    """As ``uncrowded``, and no transfer waits for a CPU."""
    return without_transfer(uncrowded(window))


def _uncrowded(facts: Facts, shares: Floats) -> Removal:
    """Work on CPUs is shorter by all waiting, that of each rank in each step where it is known; as far as possible."""
    window, machine = facts.window, facts.machine
    held_s = held_up(window, machine)
    if held_s is not None:
        phases = tuple(name for name in COMPUTING if is_work(window, name))
        computing_s = per_step(window, phases)
        gone_s = np.minimum(held_s, AT_MOST * computing_s)
        kept: Floats = 1 - np.divide(gone_s, computing_s, out=np.zeros_like(computing_s), where=computing_s > 0)
        return partial(shortened_by_step, kept=dict.fromkeys(phases, kept))
    phases = ON_HOSTS if "host" in window.work else ON_CPUS
    on_cpus_s = per_step(window, phases).mean(axis=0)
    gone_s = np.minimum(shares / max(1, machine.started or 1) * facts.step_s, AT_MOST * on_cpus_s)
    left: Floats = 1 - np.divide(gone_s, on_cpus_s, out=np.zeros_like(on_cpus_s), where=on_cpus_s > 0)
    return partial(scaled, phases=phases, factor=left)
