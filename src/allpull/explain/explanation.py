"""Explain one run: its window, its efficiency, its findings, and what remains unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.coverage import epochs, named_s
from allpull.analyse.idle import accelerator_idle
from allpull.analyse.replicas import gaps_of_replicas, replicas
from allpull.analyse.same_samples import SameSamples, gaps_of_same_samples
from allpull.explain.candidate import MIN_SHARE
from allpull.explain.detail import waiting
from allpull.explain.efficiency_tree import TreeResult, tree
from allpull.explain.evidence.ddp_settings import (
    CommHook,
    broadcasts_only_buffers,
    comm_hooks,
    ddp_settings,
    new_networks,
)
from allpull.explain.evidence.facts import Facts, Observed, OtherRun, first_batches, gather, other_run
from allpull.explain.evidence.hosts.link_fit import with_links
from allpull.explain.evidence.hosts.machine import Machine, machine_of
from allpull.explain.evidence.hosts.network import Network, network_of
from allpull.explain.evidence.hosts.transports import transports_of
from allpull.explain.evidence.late.cpu_waiting import CROWDED
from allpull.explain.evidence.late.lateness import step_s
from allpull.explain.evidence.late.stalls import stalls_of
from allpull.explain.evidence.loading.file_access import file_access
from allpull.explain.evidence.loading.loader_pace import keeps_workers, loader_pace, worker_counts
from allpull.explain.evidence.lone_delays import lone_delays
from allpull.explain.evidence.opposed_passes import opposed_passes
from allpull.explain.evidence.start import start_of
from allpull.explain.evidence.step_counts import reducing_steps
from allpull.explain.findings import Findings, advice, findings
from allpull.explain.rules import no_exchange, same_samples
from allpull.explain.rules.drift import two_levels
from allpull.replay.blame import Blame, blame
from allpull.replay.pop import against_reference, pop
from allpull.replay.recording.build import NoWindow, Record, record_window
from allpull.replay.window import WORK, Window
from allpull.rundir.read.nccl_log import read_transports
from allpull.rundir.read.run import RunData
from allpull.schema.base import tag
from allpull.schema.explained import INDICATIVE, Efficiency, ExplainedWindow, ExplainResult, Finding, PhaseTimes
from allpull.schema.gap import Gap, texts
from allpull.schema.pop import PopEfficiencies
from allpull.schema.steps import ROLLOUTS
from allpull.units import percent, show_time

BUSY = 0.8  # POP: acceptable; a run that computes less is not healthy, even without a finding
SCALES = 0.9  # of the speed on fewer ranks: a run that computes more slowly is not healthy, whatever the reason
LARGE = 1.1  # speed-up: a factor of the tree that loses as much is mentioned, whatever is found
UNEXPLAINED = 0.05  # speed-up: findings are priced in another order than factors
BLIND = 0.1  # of a step: a run in which a rank could be later than that unnoticed is not called healthy
SHORT_PASSES = 0.5  # epochs per step: the program makes an iterator for each batch
CORES = "healthy cores of one machine differ by nearly that much"
NAMES = (*WORK, "wait", "transfer")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """One run explained: the ``result`` and what it rests on; None where there was no window."""

    result: ExplainResult
    window: Window | None = None
    blame: Blame | None = None


def explain(aligned: AlignedRun, references: Sequence[AlignedRun] = (), record: Record = record_window) -> Explanation:
    """One run explained, against the one of ``references`` with the fewest ranks, where there are any."""
    run = aligned.data
    if isinstance(recorded := record(aligned), NoWindow):
        return Explanation(result=_without_window(aligned, recorded))
    machine = machine_of(run, recorded.steps)
    network = network_of(machine, recorded)
    window = with_links(recorded, None if network.busy_share is None else network.busy_share * step_s(recorded))
    compared = [(one.data, other) for one in references if isinstance(other := record(one), Window)]
    reference, against = min(compared, key=lambda pair: pair[1].ranks, default=(None, None))
    charged = blame(window)
    other_runs = [one for data, other in compared if (one := other_run(data, other)) is not None]
    facts = _facts(aligned, window, machine=machine, network=network, charged=charged, other_runs=other_runs)
    grown = tree(facts.window, against)
    answers, unsure = _answered(replace(facts, simulation_error=grown.simulation_error or 0.0))
    result = ExplainResult(
        schema=tag("explain"),
        run=run.record.id,
        reference=None if reference is None else reference.record.id,
        ranks=window.ranks,
        hosts=len(facts.machine.host_names),
        window=_seen(window),
        efficiency=grown.efficiency,
        gains=grown.gains,
        simulation_error=grown.simulation_error,
        clock_error_s=aligned.clock.bound_s,
        pop=_pop(window, against),
        idle=accelerator_idle(aligned),
        phases=_phases(window, charged),
        waiting=waiting(window, charged),
        findings=list(answers.findings),
        healthy=_healthy(grown.efficiency, facts, answers, is_sure=not (answers.undecided or unsure)),
        notes=_begun(
            *_about(facts, grown, comm_hooks(run)),
            *([] if facts.is_too_short or not window.complete else _without_a_reason(grown, answers)),
            *([] if facts.is_too_short else unsure),
            *answers.notes,
            *_not_compared(references, compared),
            *texts([*window.gaps, *aligned.buckets.gaps, *_of_training(aligned), *run.gaps]),
        ),
    )
    return Explanation(result=result, window=window, blame=charged)


def _facts(
    aligned: AlignedRun,
    window: Window,
    *,
    machine: Machine,
    network: Network,
    charged: Blame,
    other_runs: Sequence[OtherRun],
) -> Facts:
    """What rules examine of a run; ``charged``: which rank made which wait."""
    run, networks = aligned.data, ddp_settings(aligned.data)
    observed = Observed(
        first=first_batches(aligned, window),
        other_runs=tuple(other_runs),
        no_exchange=aligned.no_exchange,
        same_samples=_same_for_copies(aligned),
        iterable_samples=aligned.iterable_samples,
        has_epochs=epochs(run) > 0,
        has_short_passes=epochs(run) > SHORT_PASSES * run.steps["step"].n_unique(),
        keeps_workers=keeps_workers(run),
        worker_counts=worker_counts(run, window.steps),
        rollouts_s={name: spent for name, spent in named_s(run, window.steps).items() if name in ROLLOUTS},
        stalls=stalls_of(run, window.steps),
        files=file_access(run, window.steps),
        networks=networks,
        new_networks=new_networks(aligned.reductions),
        broadcasts_only_buffers=broadcasts_only_buffers(run, networks),
        transports=transports_of(run, read_transports(run.directory, run.events)),
        start=start_of(run.record),
        reducing_steps=reducing_steps(aligned),
    )
    pace = loader_pace(run, window.steps)
    return gather(window, machine, observed, network=network, blame=charged, pace=pace)


def _answered(facts: Facts) -> tuple[Findings, list[str]]:
    """The findings, and notes on what may cost much and is none."""
    answers = findings(facts)
    return answers, [*lone_delays(facts, answers.findings), *opposed_passes(facts)]


def _without_window(aligned: AlignedRun, window: NoWindow) -> ExplainResult:
    run, unrelated = aligned.data, aligned.no_exchange
    reason = window.reason if unrelated is None else "no rank waits for another; run one rank alone to see its phases"
    hosts = {header.host for header in run.headers.values()} or set(run.record.hosts)
    return ExplainResult(
        schema=tag("explain"),
        run=run.record.id,
        reference=None,
        ranks=run.record.ranks,
        hosts=len(hosts),
        window=ExplainedWindow(steps=0, seconds=0.0, first_step=None, last_step=None, level="step"),
        efficiency=None,
        gains={},
        simulation_error=None,
        clock_error_s=aligned.clock.bound_s,
        idle=accelerator_idle(aligned),
        phases=PhaseTimes(mean=dict.fromkeys(NAMES), per_rank=dict.fromkeys(NAMES)),
        findings=_wasted(aligned),
        healthy=None,
        notes=_begun(
            f"{'nothing' if unrelated is None else 'nothing else'} can be explained: {reason}",
            *texts([*_of_training(aligned), *run.gaps]),
        ),
    )


def _wasted(aligned: AlignedRun) -> list[Finding]:
    """The findings about what is trained, which need no window."""
    unrelated = aligned.no_exchange
    return [
        *([] if unrelated is None else [advice(no_exchange.candidate(unrelated))]),
        *map(advice, same_samples.candidates(_same_for_copies(aligned), aligned.iterable_samples)),
    ]


def _same_for_copies(aligned: AlignedRun) -> SameSamples | None:
    """The copies of a model that train on the same samples; parts of one may."""
    same = aligned.same_samples
    return same if same is not None and same.averaged else None


def _of_training(aligned: AlignedRun) -> Iterator[Gap]:
    """What is known of the copies of the model and of the samples that they train on, beside findings."""
    yield from gaps_of_replicas(replicas(aligned.data.events))
    if _same_for_copies(aligned) is None:
        yield from gaps_of_same_samples(aligned.same_samples)


def _begun(*notes: str) -> list[str]:
    """``notes`` with a capital first letter, as titles have it; one that begins with a name or a path stays as it is.

    >>> _begun("one step is too few", "steps/rank-00001.jsonl is torn")
    ['One step is too few', 'steps/rank-00001.jsonl is torn']
    """
    return [note[:1].upper() + note[1:] if note.partition(" ")[0].isalpha() else note for note in notes]


def _not_compared(references: Sequence[AlignedRun], compared: Sequence[tuple[RunData, Window]]) -> list[str]:
    """A note on each of ``references`` that has no window."""
    known = {run.record.id for run, _ in compared}
    return [f"{one.data.record.id}: no window to compare with" for one in references if one.data.record.id not in known]


def _pop(window: Window, reference: Window | None) -> PopEfficiencies | None:
    measured = pop(window)
    return None if measured is None else against_reference(measured, None if reference is None else pop(reference))


def _seen(window: Window) -> ExplainedWindow:
    steps = window.steps
    return ExplainedWindow(
        steps=steps.size,
        seconds=window.measured_s,
        first_step=int(steps[0]) if steps.size else None,
        last_step=int(steps[-1]) if steps.size else None,
        level=window.level,
    )


def _phases(window: Window, charged: Blame) -> PhaseTimes:
    """Seconds per step of each phase; None: no rank did it, or it is unknown, as waiting is if some left no records."""
    steps = max(1, window.steps.size)
    each = {name: window.per_step(name).sum(axis=0) / steps for name in WORK if name in window.work}
    if window.ranks > 1 and window.complete:
        wait_s, blocked_s = charged.wait_s, charged.delay_s + charged.transfer_s
        each |= {"wait": wait_s.sum(axis=0) / steps, "transfer": (blocked_s - wait_s).sum(axis=0) / steps}
    return PhaseTimes(
        mean={name: float(np.mean(each[name])) if name in each else None for name in NAMES},
        per_rank={name: each[name].tolist() if name in each else None for name in NAMES},
    )


def _healthy(efficiency: Efficiency | None, facts: Facts, answers: Findings, *, is_sure: bool) -> str | None:
    """The sentence on a run without findings; None where a fault could go unnoticed."""
    floor_s = facts.floor_s
    is_blind = floor_s is not None and floor_s > BLIND * facts.step_s
    is_blind |= facts.no_exchange is not None  # unrelated trainings are not one healthy training
    is_blind |= bool(same_samples.find(facts))  # all but one do what one does
    is_blind |= not facts.window.complete  # a rank without records may be late
    is_blind |= facts.has_uneven_steps  # what the others wait meanwhile is in no step
    is_blind |= any(gap.kind == "earlier reductions" for gap in facts.window.gaps)
    grew = efficiency is not None and efficiency.computational is not None and efficiency.computational.value < SCALES
    if any(not one.advice for one in answers.findings) or facts.is_too_short or is_blind or grew:
        return None
    above = "" if floor_s is None else f" above the noise of {show_time(_named_from_s(floor_s, facts))} per step"
    said = f"Nothing stands out{above}"
    if not is_sure:
        said = f"No loss is certain{above}; the notes name some that may be large"
    if efficiency is None:
        return f"{said}."
    share = percent(efficiency.parallel.value)
    if efficiency.parallel.value < BUSY:
        return f"{said}; yet the ranks compute only {share} of the time."
    return f"{said}, and the ranks compute {share} of the time."


def _named_from_s(floor_s: float, facts: Facts) -> float:
    """The least lateness of a slow rank that is named, s per step, where noise reaches up to ``floor_s``."""
    return max(floor_s, facts.slow_share * facts.step_s if facts.on_cpus else 0.0)


def _without_a_reason(grown: TreeResult, answers: Findings) -> list[str]:
    """Factors of the tree that lose more than any finding, or any note on a doubtful one, may explain."""
    explained = max((one.gain.high or one.gain.value for one in answers.findings if one.gain), default=1.0)
    return [
        f"without what the factor {name.replace('_', ' ')} loses, training would be {gain:.2f}× as fast: no finding "
        "names a reason that costs as much"
        for name, gain in grown.gains.items()
        if gain >= LARGE and gain > explained + UNEXPLAINED and not answers.undecided
    ]


def _hooks(hooks: Sequence[CommHook], facts: Facts) -> list[str]:
    """Communication hooks whose own time counts: none of the phases distinguishes it from backward."""
    return [
        f"{show_time(one.seconds)} per step ({percent(one.seconds / facts.step_s)}) are the communication hook "
        f"{one.name} in Python ({one.calls:.3g} × per step): what it does before its first collective counts as "
        "backward, and later, after the last gradient, as transfer or wait"
        for one in hooks
        if one.seconds >= MIN_SHARE * facts.step_s
    ]


def _about(facts: Facts, grown: TreeResult, hooks: Sequence[CommHook]) -> list[str]:
    """Notes on what the whole explanation can show."""
    notes = []
    if facts.floor_s is not None:
        if facts.floor_s > 0:  # 0: of two ranks one stands out, and one alone shows no noise
            floor = f"{show_time(facts.floor_s)} per step ({percent(facts.floor_s / facts.step_s, 1)})"
            notes.append(f"a rank that is late by less than {floor} cannot be distinguished from noise in {facts.span}")
        if _named_from_s(facts.floor_s, facts) > facts.floor_s:
            notes.append(
                f"on CPUs a slow rank is named if it costs at least {percent(facts.slow_share)} of a step: {CORES}"
            )
    elif facts.is_too_short:
        steps = facts.window.steps.size
        notes.append(
            f"{'one step is' if steps == 1 else f'{steps:,} steps are'} too few to distinguish a fault from noise"
        )
    if grown.simulation_error is not None and grown.simulation_error > INDICATIVE:
        notes.append(
            "a replay with the transfers of other steps misses the measured time by "
            f"{percent(grown.simulation_error, 1)}: all of this is indicative, and each price as uncertain as that"
        )
    if facts.late.is_correlated:
        notes.append(
            "steps resemble their neighbours so much (they are correlated) that in a quarter of such runs some rank of "
            "equal ranks stands out; record more steps before you act on a slow rank"
        )
    notes += two_levels(facts)
    if facts.network.carries_other:
        notes.append(
            "the TCP connections between hosts carry less than half of the gradients: these take another way, or are "
            "compressed, and nothing is known about its links"
        )
    queued = facts.machine.queued_s
    if facts.machine.is_rehearsal and queued is not None and float(np.median(queued)) >= CROWDED:
        share = percent(float(np.median(queued)))
        notes.append(
            f"the machine under this rehearsal was overloaded: ranks waited for a CPU {share} of the time; "
            "use fewer ranks or a larger shrink"
        )
    return [*notes, *_hooks(hooks, facts)]
