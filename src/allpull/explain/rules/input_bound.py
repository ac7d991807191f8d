"""All ranks wait for their data: the loaders are slower than the training.

What it is
    A step can be no shorter than the time that the loader takes for a batch. Accelerators are then idle, and more of
    them do not help.

How it is found
    By the time in `input` that at least half of the ranks wait in ordinary steps; of two ranks, the one that waits
    less. A late first batch of an epoch is `first-batch-stall`, one rank that waits longer than the others is
    `slow-loader-rank`; where the loaders already keep all CPUs busy, it is `preprocess-offline`.

    Where workers load ahead and are always waited for, they may set the pace: whatever else becomes faster is waited
    for, and gains nothing. Waits tell: they are then shorter by as much as the rest of a step is longer. Such other
    losses are notes, not findings; where steps do not tell, their prices are upper bounds. If the loaders of all ranks
    set the pace, none of them is blamed for waiting longest. Workers that are forked time what they make: so it is also
    known how fast loaders are that nobody waits for, and no price of another finding promises more than they deliver.

    Loaders of one speed that all are too slow, and vary, are waited for in turn: some queues are full by chance, and
    the step waits for the last. Where workers are timed, and those of at least half of the ranks take longer for a
    batch than a step without waiting does, that is this fault, however short the wait of each rank is. One rank is
    named beside it only if its workers are slower than the others' by more than 2 % and their noise. Where nobody waits
    for them yet, loaders that take half of a step or longer may be all that is left to gain from other remedies: both
    are then one finding, `hidden-losses`.

What it costs
    The replay without that waiting. Where CPUs are counted, the work of loaders has to fit on those that are free: no
    more can be saved than leaves them all busy. Where that limits it, other programs use the rest of the CPUs, or
    nearly all of the wait is in a few steps, the price is an upper bound. After a late batch a device begins its phases
    together with its host and may wait for it inside them, too: where that is not known, the interval reaches up to it.

What to do
    More loader workers: `DataLoader(num_workers=…, prefetch_factor=4, persistent_workers=True, pin_memory=True)`, and
    as many CPUs for them (`sbatch --cpus-per-task=…`). The number in the finding is that of workers that make batches
    as fast as the rest of a step takes them. If the storage is slow, copy the data to local disks or pack them into a
    few large files. In allpull's own trainer: a pack, and `--set data.threads=…`; for an image folder `data.workers=…`.
    Where one worker of a rank takes longer than its others, the evidence says so, and the others wait for its turn: see
    what it has by `torch.utils.data.get_worker_info().id`, such as shards of its own. A program that calls
    `next(iter(loader))` for each batch makes a new iterator, with new workers, each time. If waits do not depend on the
    rest of a step, batches are ready, and what takes time is to take one from another process: more workers do not
    help. Hand over fewer and larger tensors; make batches in the training process (`num_workers=0`) where that takes
    less than the wait. The processes of a rank are counted, not what they are: a loader without workers looks the same
    beside another process. Where the loader has no workers and nearly all of the wait is in a few steps of each rank,
    some samples take long: see what is in these batches, or have so many made ahead that they are hidden. Where workers
    are far faster than the training, so are long samples; and where nothing but the start of workers in each of many
    short epochs is waited for, keep them (`persistent_workers=True`).

When it is wrong
    Where the loop itself makes the batch look late: a `.item()` that waits for the device just before the next batch is
    requested moves waiting for the device close to the loader.
    Of an `IterableDataset` each worker makes all samples of its rank, unless it divides them by
    `torch.utils.data.get_worker_info()`: more workers then repeat samples, and save nothing. The advice says so where
    the data set is known to be one that has no more than one worker so far, and `same-samples` where workers do it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from allpull.explain.candidate import MIN_SHARE, Candidate, Removal, as_recorded, count, rate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.pacing import fed_in_time
from allpull.explain.evidence.loader import (
    MADE,
    TIMED,
    behind_others,
    common_input,
    has_no_cpu_left,
    makers_are_fast,
    most_saved_s,
    nearly_waited_for_s,
    shares_last_cpus,
    slower_makers,
    slowest_worker,
    steps_of_long_waits,
    waited_in_turn,
    without_common_input,
    workers_needed,
)
from allpull.explain.evidence.loading.deliveries import ALONE, LEAST
from allpull.explain.remedy import Action, program, sentence, within
from allpull.explain.remedy_text import DIVIDED, cpus_for_workers, numbered, workers
from allpull.replay.whatif.work import lower_median, scaled
from allpull.replay.window import Bools, Window
from allpull.schema.explained import Evidence
from allpull.schema.results import Interval
from allpull.units import show_time

ITERATE = program("for batch in loader:")
NEW_ONE = (
    "a new one for each batch starts its workers again, and what they have made ahead is lost; if an epoch is one "
    "batch, persistent_workers=True keeps them"
)
READY = (
    "batches are ready, and taking one from another process is what takes time: more workers do not help; hand over "
    "fewer and larger tensors"
)
FAST = "workers make batches in far less time than the training takes for them: more of them do not help"
ITSELF = sentence("make small batches in the training process (", program("DataLoader(num_workers=0)"), ")")


def find(facts: Facts) -> list[Candidate]:
    """The job, where all loaders are behind and CPUs are free."""
    waited, each_s, behind = common_input(facts), nearly_waited_for_s(facts), behind_others(facts)
    made_s = 0.0 if each_s is None else float(lower_median(each_s))
    if (waited is None and not made_s) or has_no_cpu_left(facts):
        return []
    slower = slower_makers(facts) if waited is None and behind is not None else ()
    long = None if waited is None else steps_of_long_waits(facts)
    remedy = _remedy(facts, 0.0 if waited is None else waited.value, long)
    most_s = most_saved_s(facts)
    without: Removal = partial(
        without_common_input, first=facts.first, behind=None if behind is None else (*behind, *slower), most_s=most_s
    )
    if slower:
        without = partial(_except_of, without=without, ranks=slower)
    bounds: tuple[Removal, Removal] | None = None
    if (waited is not None and most_s < waited.value) or shares_last_cpus(facts) or long is not None:
        bounds = (as_recorded, without)
    if facts.has_short_passes:
        bounds = (without if bounds is None else as_recorded, partial(_without_new_iterators, without=without))
    elif bounds is None and facts.window.paced_s is not None:
        bounds = (without, partial(fed_in_time, without=without))
    return [
        Candidate(
            rule="input-bound",
            kind="job",
            title=_nearly_behind(made_s, facts.step_s) if waited is None else waits(facts, waited),
            remedy=remedy,
            evidence=(
                *(() if waited is None else (waiting(facts, waited),)),
                *(() if long is None else _long(facts, long)),
                *loader_evidence(facts, has_slowest=long is None),
            ),
            without=without,
            bounds=bounds,
            least_share=MIN_SHARE if waited is None else LEAST,
        )
    ]


def _except_of(window: Window, without: Removal, ranks: tuple[int, ...]) -> Window:
    """``window`` after ``without``, in which the loaders of ``ranks`` are as they were, and limit what they did."""
    changed = without(window)
    if "input" not in window.work:
        return changed
    chosen = np.isin(np.arange(window.ranks), ranks)
    input_s = np.where(chosen, window.work["input"], changed.work["input"])
    return replace(changed, work={**changed.work, "input": input_s})


def _nearly_behind(made_s: float, step_s: float) -> str:
    return f"All loaders take {show_time(made_s)} for the batches of a step, which takes {show_time(step_s)}"


def _without_new_iterators(window: Window, without: Removal) -> Window:
    """Nor does anything take time between phases, where iterators end, and wait for their workers."""
    return scaled(without(window), ("other",), 0.0)


def waits(facts: Facts, waited: Interval) -> str:
    """The wait that ranks have in common, for a title."""
    if waited_in_turn(facts):
        return f"All loaders are slower than the training: it waits {show_time(waited.value)} per step for the last"
    return f"{facts.all_ranks('wait')} {show_time(waited.value)} per step for their data"


def waiting(facts: Facts, waited: Interval) -> Evidence:
    """The same as evidence."""
    if waited_in_turn(facts):
        return seconds("by how much a step is longer because loaders are waited for, in turn", waited, facts.span)
    return seconds("wait for the loader on at least half of the ranks", waited, facts.span)


def loader_evidence(facts: Facts, *, has_slowest: bool = True) -> tuple[Evidence, ...]:
    """What the counters show of loaders and storage; ``has_slowest``: a worker that is slower than the others, too."""
    machine = facts.machine
    evidence = []
    making = None if facts.loading is None else facts.loading.limits.making
    if making is not None:
        evidence.append(seconds(MADE, float(making.step_s.max()), TIMED))
        evidence += slowest_worker(facts, range(facts.window.ranks)) if has_slowest else ()
    if machine.started is not None:
        evidence.append(
            count("processes of a rank, including its loader workers", machine.started, "counters of the hosts")
        )
    for host in machine.host_names:
        busy = machine.busy_share(host)
        if busy is not None:
            evidence.append(
                share(f"share of the CPUs of {host} that ranks and workers keep busy", busy, "counters of the hosts")
            )
    if machine.read_bytes_per_s is not None:
        evidence.append(rate("data read by all ranks", machine.read_bytes_per_s, "counters of the ranks"))
    if machine.storage_read_bytes_per_s is not None:
        evidence.append(rate("of that, from storage", machine.storage_read_bytes_per_s, "counters of the ranks"))
    return tuple(evidence)


def _long(facts: Facts, long: Bools) -> tuple[Evidence, ...]:
    """The ``long`` waits."""
    steps = numbered(facts.window.steps[long])
    return (
        count(f"steps that hold nearly all of it: {steps}", int(long.sum()), facts.span),
        seconds("the longest wait", _longest_s(facts, long), facts.span),
    )


def _longest_s(facts: Facts, long: Bools) -> float:
    return float(facts.window.per_step("input")[long].max())


def _itself(facts: Facts, waited_s: float) -> Action:
    """That the training process may make batches, where this takes less than it waits for workers; else nothing."""
    loading = facts.loading
    if loading is None or loading.limits.making is None:
        return Action()
    itself_s = float(loading.limits.making.step_s.max()) * loading.limits.workers  # what their work takes one process
    return ITSELF if itself_s < waited_s else Action()


def _remedy(facts: Facts, waited_s: float, long: Bools | None) -> Action:
    started = facts.machine.started
    most, loading = None if started is None else max(0, started - ALONE), facts.loading
    now = "" if most is None else f" (now at most {most} per rank)" if most else " (now none)"
    if loading is not None and loading.limits.making is not None:
        now = f" (now {loading.limits.workers} per rank)"
    needed = workers_needed(facts, waited_s)
    more, divide = workers(facts.start, facts.machine, needed), f"; {DIVIDED}" if facts.may_repeat_samples else ""
    if facts.has_short_passes:
        return sentence(
            "make one iterator for a whole pass, and take batch after batch from it (", ITERATE, "): ", NEW_ONE
        )
    is_own = facts.start.starter != "train"
    if is_own and loading is not None and loading.ready:
        making = loading.limits.making
        if making is None:
            return sentence(f"if the loader has workers, {READY}, or ", ITSELF, "; if it has none: ", more, divide)
        return sentence(READY, within(", or ", _itself(facts, waited_s)))
    if is_own and long is not None:
        number = facts.workers or needed or 1
        making = None if loading is None else loading.limits.making
        waited_steps = _longest_s(facts, long) / float(np.median(facts.window.wall_s[~long]))
        hidden = waited_steps + (1 if making is None else making.ahead)  # at least the batch itself
        ahead = max(4, math.ceil(hidden / number))
        return sentence(
            f"see what is in the batches of steps {numbered(facts.window.steps[long])}; workers that make enough "
            "batches ahead hide them: ",
            workers(facts.start, facts.machine, number, ahead=ahead),
            divide,
        )
    if is_own and makers_are_fast(facts):
        kept = program(f"DataLoader(num_workers={facts.workers}, persistent_workers=True)")
        return sentence(
            FAST,
            within("; ", _itself(facts, waited_s)),
            ""
            if facts.keeps_workers or not facts.first.any()
            else sentence("; they start again with each epoch: ", kept),
        )
    cpus = cpus_for_workers(facts.start, facts.machine)
    with_cpus, storage = within(", with ", cpus, " for them"), "; data on local disks where storage is slow"
    return sentence(within(f"more loader workers{now}: ", more), with_cpus, storage, divide)
