"""One rank waits for its data longer than the others, and all of them wait for it.

What it is
    The loader of one rank is behind: a slow disk or network mount on its host, fewer workers, other files.

How it is found
    By its time in `input` compared with that of the other ranks in each step, as in `slow-rank`. Waiting for loaders
    that all ranks have in common is `input-bound`. Where workers time what they make, and loaders set the pace, their
    own times tell instead: a rank that waits longest although its workers are as fast as the others' is not named, and
    ranks whose workers are slower are, also where they are waited for in turn. One that nobody waits for, because
    something else is as slow, is part of `hidden-losses`.

What it costs
    The replay with the input of this rank equal to the median of the others. On a device the interval reaches up to all
    of its phases being like theirs: after a late batch it may wait for its host inside them, too.

What to do
    Check what that host reads from: `findmnt`, `iostat -x 1`, the number of workers. Stage the data on local disks, or
    make shards of equal size. Where the counters show neither loader workers nor reads from storage, the rank itself
    makes its batches: then look at that work, and at what else its CPUs do. Where one of its workers takes longer than
    the others, the evidence says so: see what that one has by `torch.utils.data.get_worker_info().id`. Where the rank
    has fewer workers than others, give it as many.

When it is wrong
    Where the loader runs in the main process (`num_workers=0`), a slow processor looks like a slow loader. Loaders of
    other ranks that are hardly faster are not waited for now, and would be next; the price knows that where workers are
    timed.
    Of an `IterableDataset` each worker makes all samples of its rank, unless it divides them by
    `torch.utils.data.get_worker_info()`: more workers then repeat samples, and save nothing. The advice says so where
    the data set is known to be one that has no more than one worker so far, and `same-samples` where workers do it.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, count, seconds
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.late.grouping import Group, groups, named
from allpull.explain.evidence.loader import (
    MADE,
    TIMED,
    fewer_workers,
    has_no_cpu_left,
    nearly_waited_for_s,
    slower_makers,
    slowest_worker,
    workers_now,
)
from allpull.explain.evidence.loading.deliveries import ALONE
from allpull.explain.evidence.loading.file_access import LEAST_BYTES_PER_S
from allpull.explain.remedy import Action, program, sentence, shell
from allpull.explain.remedy_text import DIVIDED, quoted, workers
from allpull.explain.rules.slow_rank import waiting_evidence
from allpull.replay.whatif.balanced import like_median
from allpull.schema.explained import Evidence
from allpull.units import show_time

ONE_WORKER = (
    "see what the worker reads or does that is slower than the others of its rank: in the data set, "
    "torch.utils.data.get_worker_info().id is its number"
)


def find(facts: Facts) -> list[Candidate]:
    """The ranks whose loaders are behind."""
    late = [_suspect(group, facts) for group in groups(facts.late.loaders, lambda one: one.steady)]
    return [*late, *_nearly_behind(facts)]


def _nearly_behind(facts: Facts) -> list[Candidate]:
    """The ranks whose workers are slower than the others', and would be waited for if something else were mended."""
    made_s = nearly_waited_for_s(facts)
    ranks = [one for one in slower_makers(facts) if one not in facts.late.loading]
    if made_s is None or not any(made_s[ranks]) or len(ranks) + len(facts.late.loading) == facts.window.ranks:
        return []
    ranks = [one for one in ranks if made_s[one]]
    who = f"The loader of rank {ranks[0]}" if len(ranks) == 1 else f"The loaders of {len(ranks)} ranks"
    longest_s = float(made_s[ranks].max())
    return [
        Candidate(
            rule="slow-loader-rank",
            kind="job",
            title=f"{who} {'takes' if len(ranks) == 1 else 'take'} {show_time(longest_s)} for the batches of a step, "
            "longer than those of the others",
            remedy=_remedy(ranks, facts),
            evidence=(seconds(MADE, longest_s, TIMED), *slowest_worker(facts, ranks)),
            without=partial(
                like_median, ranks=ranks, phases=("input",), unlike={*facts.late.loading, *slower_makers(facts)}
            ),
            ranks=tuple(ranks),
        )
    ]


def _suspect(group: Group, facts: Facts) -> Candidate:
    ranks = list(group.ranks)
    is_one = len(ranks) == 1
    wait = f"{facts.on(ranks[0])} waits" if is_one else f"{named(ranks, facts.machine)} wait"
    longer = f"{group.span()} per step longer for {'its' if is_one else 'their'} data than the others"
    without = partial(like_median, ranks=group.ranks, phases=("input",), unlike=facts.late.loading)
    in_all = partial(like_median, ranks=group.ranks, unlike=facts.late.loading)
    which = f"rank {ranks[0]}" if is_one else "the latest of them"
    return Candidate(
        rule="slow-loader-rank",
        kind="late",
        title=f"{wait} {longer}{'' if group.steady else ' in some steps'}",
        remedy=_remedy(ranks, facts),
        evidence=(
            seconds(f"time that {which} waits for its loader beyond the others", group.size, facts.span),
            seconds("its whole wait for the loader", float(facts.mean_s("input")[group.members[0].rank]), facts.span),
            *slowest_worker(facts, ranks),
            *_numbers_of_workers(facts, ranks),
            *waiting_evidence(ranks, facts),
        ),
        without=without,
        bounds=None if facts.window.paced_s is None else (without, in_all),
        ranks=group.ranks,
    )


def _remedy(ranks: list[int], facts: Facts) -> Action:
    hosts = facts.hosts_of(ranks)
    which, does = ("that rank", "does") if len(ranks) == 1 else ("these ranks", "do")
    if (usual := fewer_workers(facts, ranks)) is not None:
        return sentence(
            f"give {which} as many loader workers as the others: ", program(f"DataLoader(num_workers={usual})")
        )
    more = workers(facts.start, facts.machine, now=workers_now(facts))
    if facts.may_repeat_samples:
        more = sentence(more, f"; {DIVIDED}")
    if _makes_its_own(facts):
        on = f" on {quoted(hosts)}" if hosts else ""
        made = f"the data is made in the training process{on}, and not read from storage"
        check = sentence(f"{made}: look at what {which} {does} for each batch")
        return check if has_no_cpu_left(facts) else sentence(check, ", or make it in loader workers: ", more)
    where = f"{quoted(hosts)} {'reads' if len(hosts) == 1 else 'read'}" if hosts else "its host reads"
    tools = ("findmnt, ", shell("iostat -x 1"))
    how = ") and with how many workers; copy the data to local disks"
    check = sentence(f"check what {where} from (", *tools, how)
    if slowest_worker(facts, ranks):
        return sentence(ONE_WORKER)
    if has_no_cpu_left(facts) or facts.start.starter == "train":
        return check
    return sentence(check, f", or give {which} more of them: ", more)


def _numbers_of_workers(facts: Facts, ranks: list[int]) -> tuple[Evidence, ...]:
    """That ``ranks`` have fewer workers than the others."""
    usual = fewer_workers(facts, ranks)
    if usual is None:
        return ()
    own = min(facts.worker_counts[rank] for rank in ranks)
    which = f"rank {ranks[0]}" if len(ranks) == 1 else "the one of them that has the fewest"
    return (
        count(f"loader workers of {which}", own, TIMED),
        count("the same for the median of the others", usual, TIMED),
    )


def _makes_its_own(facts: Facts) -> bool:
    """Whether no rank has loader workers, and none reads from storage."""
    started, stored = facts.machine.started, facts.machine.storage_read_bytes_per_s
    return started is not None and started <= ALONE and stored is not None and stored < LEAST_BYTES_PER_S
