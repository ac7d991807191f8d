"""The efficiencies of the POP Centre, from a window and one replay of it on an ideal network.

With U_r the useful time of rank r, T the measured time and T_ideal the time on a network without latency and with
infinite bandwidth (pop-coe.eu/node/69; Wagner, Mohr, Giménez & Labarta 2017, IPTW)::

    load balance  = mean U / max U          serialisation = max U / T_ideal
    communication = max U / T               transfer      = T_ideal / T
    parallel      = mean U / T = load balance · communication        communication = serialisation · transfer

Useful is the computation of the training (``useful``): what a rank does while others wait for it, such as an evaluation
on rank 0, is not, so it lowers communication, by serialisation. A tool that records communication alone, such as
Extrae, counts as useful all that a rank does outside it: the loader, copies, and the evaluation on rank 0, which then
lowers load balance. Those numbers are ``outside_communication``, and what they count in addition is named.

The efficiency tree splits the same loss further (docs/explanation/pop.md)::

    parallel      = tree parallel · T0/T            transfer = tree transfer · T0/T
    load balance  = tree load balance ÷ uneven
    serialisation = tree input · sequential · orchestration · serialisation · uneven
    uneven        = max U / T5: what copies, gaps and other work add to the rank that they make latest
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allpull.analyse.aligned import AlignedRun
from allpull.replay.engine import replay
from allpull.replay.recording.build import NoWindow, Record, record_window
from allpull.replay.useful import sequential, useful_s
from allpull.replay.whatif.network import single_rank, without_transfer
from allpull.replay.whatif.work import ORCHESTRATION
from allpull.replay.window import Window
from allpull.schema.pop import OutsideCommunication, PopEfficiencies
from allpull.schema.results import RunMetrics


def pop(window: Window) -> PopEfficiencies | None:
    """The efficiencies of ``window``, without those that need a reference.

    None where no useful work was recorded, or ranks of the job have no records: how long a rank waited is then unknown.
    """
    base = single_rank(window)
    work_s = useful_s(base).sum(axis=0)
    if not window.complete or not work_s.sum() > 0 or not window.measured_s > 0:
        return None
    ideal_s, measured_s = replay(without_transfer(base)).total_s, window.measured_s
    mean_s, largest_s = float(work_s.mean()), float(work_s.max())
    samples = float(window.samples.sum())
    return PopEfficiencies(
        parallel=mean_s / measured_s,
        load_balance=mean_s / largest_s,
        communication=largest_s / measured_s,
        serialisation=largest_s / ideal_s,
        transfer=ideal_s / measured_s,
        useful_s_per_sample=float(work_s.sum()) / samples if samples > 0 else None,
        outside_communication=_outside_communication(base),
        first_step=int(window.steps[0]),
        steps=int(window.steps.size),
        seconds=measured_s,
    )


def against_reference(one: PopEfficiencies, reference: PopEfficiencies | None) -> PopEfficiencies:
    """``one`` with computational scaling and global efficiency; unchanged where samples of either are not known.

    Computational scaling is the useful time per sample of the reference over that of ``one``: POP's ratio of total
    useful times where both do the same work (strong scaling), and the same per rank where work grows with the ranks.
    """
    own_s, reference_s = one.useful_s_per_sample, None if reference is None else reference.useful_s_per_sample
    if not own_s or not reference_s:
        return one
    computational = reference_s / own_s
    return one.model_copy(update={"computational": computational, "global_": one.parallel * computational})


def with_pop(
    runs: Sequence[RunMetrics], aligned: Sequence[AlignedRun], reference: str | None, record: Record = record_window
) -> list[RunMetrics]:
    """``runs`` with their efficiencies, or why there are none; ``aligned`` in their order.

    Each is scaled against the run that its speed-up refers to, by default the one with the id ``reference``.
    """
    measured = {run.run: _of_run(one, record) for run, one in zip(runs, aligned, strict=True)}
    return [_added(run, measured[run.run], measured.get(run.reference or reference or "")) for run in runs]


def _added(run: RunMetrics, measured: PopEfficiencies | str, reference: PopEfficiencies | str | None) -> RunMetrics:
    if isinstance(measured, str):
        return run.model_copy(update={"pop_missing": measured})
    basis = reference if isinstance(reference, PopEfficiencies) and run.speedup is not None else None
    return run.model_copy(update={"pop": against_reference(measured, basis)})


def _of_run(aligned: AlignedRun, record: Record) -> PopEfficiencies | str:
    """The efficiencies of a run, or the reason why there are none."""
    if aligned.no_exchange is not None:
        return "its ranks are unrelated trainings"
    window = record(aligned)
    if isinstance(window, NoWindow):
        return window.reason
    if not window.complete:
        return "not all ranks of the job were recorded"
    return pop(window) or "no forward, backward or optimizer was recorded"


def _outside_communication(window: Window) -> OutsideCommunication:
    """The efficiencies if all work is useful that is not blocked in a collective."""
    work_s = sum(window.work.values(), start=np.zeros((window.events, window.ranks))).sum(axis=0)
    mean_s, largest_s = float(work_s.mean()), float(work_s.max())
    added_s = {name: float(window.per_step(name).sum(axis=0).mean()) for name in ("input", *ORCHESTRATION)}
    for name, seconds in sequential(window).items():
        added_s[name] = float(seconds.sum(axis=0).mean())
    return OutsideCommunication(
        parallel=mean_s / window.measured_s,
        load_balance=mean_s / largest_s,
        communication=largest_s / window.measured_s,
        added={name: seconds / window.measured_s for name, seconds in added_s.items() if seconds > 0},
    )
