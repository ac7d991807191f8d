"""``allpull lab``: labs for teaching, each one command and one page."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from allpull.cli.options import AsJson, Out, has_desktop
from allpull.cli.say import answer, answer_json, note
from allpull.cli.verb import Verb, VerbGroup, example

if TYPE_CHECKING:
    from allpull.labs.notebook import Done

lab = typer.Typer(
    cls=VerbGroup,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="Labs for teaching: gradient descent and all-reduce, each one page.",
    epilog=example("allpull lab sgd --batch 1000"),
)

Page = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Page to write. [default: lab-NAME.html]")
]
Figures = Annotated[
    Path | None,
    typer.Option("--figures", metavar="DIR", help="Also write each chart as PNG, SVG and PDF into this folder."),
]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")]


@lab.callback()
def list_labs(context: typer.Context) -> None:
    """List the labs, where none is named."""
    if context.invoked_subcommand is not None:
        return
    from allpull.labs import LABS  # noqa: PLC0415  pydantic is not needed for --help

    answer("\n".join(f"allpull lab {name:6}{about}" for name, about in LABS.items()))


@lab.command("sgd", cls=Verb, epilog=example("allpull lab sgd -n 2 --without broadcast"))
def sgd(  # noqa: PLR0917  one parameter an option, called by typer alone
    batch: Annotated[int, typer.Option("--batch", metavar="B", help="Samples of an update, over all ranks.")] = 100,
    ranks: Annotated[int, typer.Option("-n", "--ranks", metavar="N", help="Ranks: from 2 on real processes.")] = 1,
    share: Annotated[
        Literal["strong", "weak"],
        typer.Option("--share", help="strong: ranks divide the batch; weak: each has one of its own."),
    ] = "strong",
    without: Annotated[
        Literal["broadcast", "average"] | None,
        typer.Option("--without", help="What ranks leave out, so that they part: broadcast or average."),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", metavar="E", help="Passes over all samples.")] = 150,
    rate: Annotated[float, typer.Option("--rate", metavar="R", help="Learning rate.")] = 0.5,
    samples: Annotated[int, typer.Option("--samples", metavar="S", help="Points of the line.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Of the noise and of the order.")] = 0,
    output: Page = None,
    figures: Figures = None,
    out: Out = Path("runs"),
    open_page: Open = True,
    as_json: AsJson = False,
) -> None:
    """Watch gradient descent walk over the map of its loss."""
    from allpull.labs.notebook import sgd as do  # noqa: PLC0415  pydantic is not needed for --help

    done = do(
        batch=batch,
        epochs=epochs,
        rate=rate,
        samples=samples,
        seed=seed,
        ranks=ranks,
        share=share,
        without=without,
        out=out,
    )
    _show(done, output or Path("lab-sgd.html"), figures, open_page=open_page, as_json=as_json)


@lab.command("ring", cls=Verb, epilog=example("allpull lab ring -n 8"))
def ring(  # noqa: PLR0917  as above
    ranks: Annotated[int, typer.Option("-n", "--ranks", metavar="N", help="Ranks, 2 to 16.")] = 4,
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="Gradients of one rank.")] = "1MiB",
    link: Annotated[
        str,
        typer.Option("--link", metavar="RATE", help="A virtual host for each rank, with such a link (Linux, root)."),
    ] = "",
    latency: Annotated[str, typer.Option("--latency", metavar="TIME", help="Of such a link.")] = "0.1 ms",
    output: Page = None,
    figures: Figures = None,
    out: Out = Path("runs"),
    open_page: Open = True,
    as_json: AsJson = False,
) -> None:
    """Watch chunks move around a ring, and count what every rank sends."""
    from allpull.labs.notebook import ring as do  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.units import parse_bytes  # noqa: PLC0415  as above

    done = do(ranks, size_bytes=parse_bytes(size), link=link, latency=latency, out=out)
    _show(done, output or Path("lab-ring.html"), figures, open_page=open_page, as_json=as_json)


def _show(done: Done[Any], output: Path, figures: Path | None, *, open_page: bool, as_json: bool) -> None:
    """Write the page of a lab, and say where; as JSON print its facts too."""
    written = done.write(output)
    if figures is not None:
        for path in done.write_figures(figures):
            note(f"figure: {path}")
    if as_json:
        answer_json(done.result)
    else:
        answer(f"{done.page.subject}\n{written}")
    if open_page and sys.stdout.isatty() and has_desktop():
        webbrowser.open(written.resolve().as_uri())
