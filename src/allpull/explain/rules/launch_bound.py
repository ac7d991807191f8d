"""The accelerator is idle while the host issues its next work.

What it is
    Many small kernels: Python and the driver take longer to launch them than the device takes to run them.

How it is found
    By the phase `host`: time in which the device had no work and no batch, collective or copy was waited for. Without a
    profiler that is only known where the host is well ahead of its device. Where it is not, half of the step or more
    passes in forward, backward and optimizer while the host still issues them (`paced_ns`).

What it costs
    The replay without it, as far as ranks have it in common: what one of them takes longer is `slow-rank`. A paced
    device may have worked at any time: the price is then that of all paced time, and an upper bound ("at most").

What to do
    `torch.compile(model, mode="reduce-overhead")` (CUDA graphs), larger batches, fewer calls that wait for the device
    (`.item()`, `print` of a tensor), fused optimizers (`fused=True`). In allpull's own trainer
    `--set train.compile=reduce-overhead`, and where the model is compiled already, `--set train.cuda_graph=true`.

When it is wrong
    Profilers slow down the host, which then looks like the cause. A device that the host waits for in each step
    (`.item()`) is paced for as long as the host takes to issue that step, even if it computes all the while.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, as_recorded, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.explain.evidence.pacing import is_paced
from allpull.replay.whatif.work import lower_median, without_common, without_pacing
from allpull.units import show_time

UNCOMPILED, COMPILED = ("train.compile", "reduce-overhead"), ("train.cuda_graph", "true")
"""Keys of allpull's own trainer and their values, by whether its model is compiled already."""
LEAST = 0.05  # of a step: the best programs have some gaps between kernels


def find(facts: Facts) -> list[Candidate]:
    """The job, where devices are idle."""
    empty_s = float(lower_median(facts.mean_s("host")))
    if empty_s < LEAST * facts.step_s:
        return _paced(facts)
    option = _option(facts)
    return [
        Candidate(
            rule="launch-bound",
            kind="job",
            title=f"Accelerators are idle for {show_time(empty_s)} per step while their hosts issue work",
            remedy=_remedy(option),
            options=option[:1] if option else (),
            evidence=(
                seconds(
                    "device idle while the host issues work, on at least half of the ranks",
                    empty_s,
                    facts.span,
                ),
                share("of the step", empty_s / facts.step_s, facts.span),
            ),
            without=partial(without_common, phases=("host",)),
            least_share=LEAST,
        )
    ]


def _paced(facts: Facts) -> list[Candidate]:
    """The job, where devices compute no faster than their hosts issue."""
    if not is_paced(facts.window) or facts.window.paced_s is None:
        return []
    paced_s = float(lower_median(facts.window.paced_s.mean(axis=0)))
    option = _option(facts)
    return [
        Candidate(
            rule="launch-bound",
            kind="job",
            title=f"Accelerators wait for at most {show_time(paced_s)} per step while their hosts issue work",
            remedy=_remedy(option),
            options=option[:1] if option else (),
            evidence=(
                seconds(
                    "computation that passed while the host was still issuing it, on at least half of the ranks",
                    paced_s,
                    facts.span,
                ),
                share("of the step", paced_s / facts.step_s, facts.span),
            ),
            without=without_pacing,
            bounds=(as_recorded, without_pacing),
            least_share=LEAST,
        )
    ]


def _option(facts: Facts) -> tuple[str, str] | None:
    """A key of allpull's own trainer and its value; None for a script."""
    return None if facts.machine.compiled is None else UNCOMPILED if not facts.machine.compiled else COMPILED


def _remedy(option: tuple[str, str] | None) -> str:
    """What to do: set ``option``, a key and its value; None: edit the script."""
    first = 'torch.compile(model, mode="reduce-overhead")' if option is None else f"--set {option[0]}={option[1]}"
    return f"{first}, larger batches, fewer .item() calls, fused optimizers"
