"""Labs in Python: each returns what its command does, and draws itself in a notebook."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Generic, TypeVar

from allpull.labs import batch_page, overlap_page, ring_page, sgd_page, straggler_page
from allpull.labs.batch import BATCHES, BatchLab, run_batch
from allpull.labs.overlap import SIZES_MIB, OverlapLab, run_overlap
from allpull.labs.ring import RingLab, run_ring
from allpull.labs.sgd import SgdLab, run_sgd
from allpull.labs.straggler import FAULTS, StragglerLab, run_straggler
from allpull.report.atomic_file import place
from allpull.report.figures import place_figures
from allpull.report.html.block import Block, Guess, Slider
from allpull.report.html.fragment import fragment
from allpull.report.page import Page, render_page
from allpull.schema.labs import (
    BatchResult,
    OverlapResult,
    RingResult,
    SgdResult,
    Share,
    StragglerFault,
    StragglerResult,
    Without,
)

SEEDS = 10_000  # short enough to tell a neighbour

Result = TypeVar("Result", SgdResult, RingResult, StragglerResult, OverlapResult, BatchResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Generic[Result]):
    """A lab that was done: its ``result``, and its ``page``; the last line of a notebook's cell shows it."""

    result: Result
    page: Page

    def write(self, path: str | Path) -> Path:
        """Write the page to ``path``; returns it.

        Raises:
            BadInput: it cannot be written.
        """
        return place(Path(path), render_page(self.page).encode("utf-8"))

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write each chart as PNG, SVG and PDF into ``folder``, for slides; returns the paths.

        Raises:
            BadInput: they cannot be written.
        """
        return place_figures(self.page.blocks.values(), Path(folder))

    def _repr_html_(self) -> str:
        return fragment([_still(block) for block in self.page.blocks.values()], self.page.subject)


def _still(block: Block) -> Block:
    """``block`` without what needs a script: no sliders, and only what precedes a guess."""
    before = takewhile(lambda part: not isinstance(part, Guess), block.parts)
    return replace(block, parts=[part for part in before if not isinstance(part, Slider)])


def sgd(
    *,
    batch: int = 100,
    epochs: int = 150,
    rate: float = 0.5,
    samples: int = 1000,
    seed: int = 0,
    ranks: int = 1,
    share: Share = "strong",
    without: Without | None = None,
    program: str | Path | None = None,
    out: str | Path = "runs",
) -> Done[SgdResult]:
    """Fit a line by stochastic gradient descent, as ``allpull lab sgd`` does.

    Args:
        batch: samples of an update, over all ranks; with ``share="weak"`` of each rank.
        epochs: passes over all samples.
        rate: the learning rate.
        samples: points of the line.
        seed: of the noise and of the order.
        ranks: real processes, from 2 on.
        share: whether ranks divide a batch (strong) or each have one (weak).
        without: what ranks leave out of data-parallel training: broadcast or average.
        program: a program that ranks run instead of the lab's own, to be checked; its arguments are those of
            ``allpull/labs/programs/sgd_by_hand.py``.
        out: folder for the run directory of several ranks.

    Raises:
        BadInput: this cannot be done here.
        AllpullError: a rank failed.
    """
    lab = SgdLab(
        batch=batch,
        epochs=epochs,
        rate=rate,
        samples=samples,
        seed=seed,
        ranks=ranks,
        share=share,
        without=without,
        program=None if program is None else Path(program),
    )
    result = run_sgd(lab, Path(out))
    return Done(result=result, page=sgd_page.page(result))


def ring(
    ranks: int = 4,
    *,
    size_bytes: int = 1 << 20,
    link: str = "",
    latency: str = "0.1 ms",
    out: str | Path = "runs",
) -> Done[RingResult]:
    """Sum numbers over ranks by a ring, a tree and a naive gather, as ``allpull lab ring`` does.

    Args:
        ranks: processes, 2 to 16.
        size_bytes: of the numbers of one rank.
        link: rate of a virtual host for each rank, such as 100 Mbit/s (Linux, root); empty: all on this machine.
        latency: of such a link.
        out: folder for the run directory of virtual hosts.

    Raises:
        BadInput: this cannot be done here.
        AllpullError: a rank failed.
    """
    result = run_ring(RingLab(ranks=ranks, size_bytes=size_bytes, link=link, latency=latency), Path(out))
    return Done(result=result, page=ring_page.page(result))


def straggler(
    ranks: int = 4,
    *,
    faults: Sequence[StragglerFault] = FAULTS,
    seed: int | None = None,
    out: str | Path = "runs",
) -> Done[StragglerResult]:
    """Rehearse one planted fault after the other, explain each, and mend it, as ``allpull lab straggler`` does.

    Args:
        ranks: processes, 3 or more; each on a virtual host of its own, where this machine can make them.
        faults: slow-rank, slow-loader, thin-link, or some of them; a thin link needs virtual hosts (Linux, root).
        seed: of the ranks at fault and of the order of the cases; None: drawn.
        out: folder for the run directories.

    Raises:
        BadInput: this machine cannot hold the ranks.
        MissingPart: only a thin link was requested, and this machine has no virtual hosts.
        AllpullError: a rank failed, or a run is too disturbed to be explained.
    """
    chosen = secrets.randbelow(SEEDS) if seed is None else seed
    result = run_straggler(StragglerLab(ranks=ranks, faults=faults, seed=chosen), Path(out))
    return Done(result=result, page=straggler_page.page(result))


def overlap(
    ranks: int = 2, *, buckets_mib: Sequence[float] = SIZES_MIB, out: str | Path = "runs"
) -> Done[OverlapResult]:
    """Train with one bucket size after the other, and see what backward hides, as ``allpull lab overlap`` does.

    Args:
        ranks: processes; each on a virtual host of its own, where this machine can make them (Linux, root).
        buckets_mib: values of DDP's ``bucket_cap_mb``, two or more.
        out: folder for the run directories.

    Raises:
        BadInput: this cannot be done here.
        AllpullError: a rank failed, or a run has no times of its buckets.
    """
    result = run_overlap(OverlapLab(ranks=ranks, sizes_mib=buckets_mib), Path(out))
    return Done(result=result, page=overlap_page.page(result))


def batch(
    batches: Sequence[int] = BATCHES,
    *,
    ranks: int | None = None,
    target: float = 0.95,
    epochs: int = 40,
    seeds: int = 3,
    rate: float = 0.03,
    warmup: float = 5.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Done[BatchResult]:
    """Train digits to a target with each global batch, as ``allpull lab batch`` does.

    Args:
        batches: global batches.
        ranks: processes, at most one per CPU; None: one per CPU, up to 4.
        target: accuracy on the test images, 0 to 1.
        epochs: passes after which a training is given up.
        seeds: trainings of each point.
        rate: learning rate of the smallest batch.
        warmup: epochs in which a scaled rate is reached.
        progress: called with a line for each training that ends, such as ``print``.

    Raises:
        BadInput: this cannot be done here.
        AllpullError: a rank failed.
    """
    lab = BatchLab(
        batches=tuple(batches),
        ranks=ranks,
        target=target,
        max_epochs=epochs,
        seeds=seeds,
        rate=rate,
        warmup_epochs=warmup,
    )
    result = run_batch(lab, progress)
    return Done(result=result, page=batch_page.page(result))
