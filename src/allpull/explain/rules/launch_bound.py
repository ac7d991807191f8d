"""The accelerator is idle while the host issues its next work.

What it is
    Many small kernels: Python and the driver take longer to launch them than the device takes to run them.

How it is found
    By the phase `host`: time in which the device had no work and no batch, collective or copy was waited for.

What it costs
    The replay without it, as far as ranks have it in common: what one of them takes longer is `slow-rank`.

What to do
    `torch.compile(model, mode="reduce-overhead")` (CUDA graphs), larger batches, fewer calls that wait for the device
    (`.item()`, `print` of a tensor), fused optimizers (`fused=True`). In allpull's own trainer
    `--set train.compile=reduce-overhead`, and where the model is compiled already, `--set train.cuda_graph=true`.

When it is wrong
    Profilers slow down the host, which then looks like the cause.
"""

from __future__ import annotations

from functools import partial

from allpull.explain.candidate import Candidate, seconds, share
from allpull.explain.evidence.facts import Facts
from allpull.replay.whatif.work import lower_median, without_common
from allpull.units import show_time

UNCOMPILED, COMPILED = ("train.compile", "reduce-overhead"), ("train.cuda_graph", "true")
"""Keys of allpull's own trainer and their values, by whether its model is compiled already."""
LEAST = 0.05  # of a step: the best programs have some gaps between kernels


def find(facts: Facts) -> list[Candidate]:
    """The job, where devices are idle."""
    empty_s = float(lower_median(facts.mean_s("host")))
    if empty_s < LEAST * facts.step_s:
        return []
    option = None if facts.machine.compiled is None else UNCOMPILED if not facts.machine.compiled else COMPILED
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


def _remedy(option: tuple[str, str] | None) -> str:
    """What to do: set ``option``, a key and its value; None: edit the script."""
    first = 'torch.compile(model, mode="reduce-overhead")' if option is None else f"--set {option[0]}={option[1]}"
    return f"{first}, larger batches, fewer .item() calls, fused optimizers"
