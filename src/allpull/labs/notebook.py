"""Labs in Python: each returns what its command does, and draws itself in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from allpull.labs import ring_page, sgd_page
from allpull.labs.ring import RingLab, run_ring
from allpull.labs.sgd import SgdLab, run_sgd
from allpull.report.atomic_file import place
from allpull.report.figures import place_figures
from allpull.report.html.block import Slider
from allpull.report.html.fragment import fragment
from allpull.report.page import Page, render_page
from allpull.schema.labs import RingResult, SgdResult, Share, Without

Result = TypeVar("Result", SgdResult, RingResult)


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
        still = [
            type(block)(
                title=block.title, lead=block.lead, parts=[one for one in block.parts if not isinstance(one, Slider)]
            )
            for block in self.page.blocks.values()
        ]
        return fragment(still, self.page.subject)


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
