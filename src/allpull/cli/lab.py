"""``allpull lab``: labs for teaching, each one command and one page."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from allpull.cli.options import AsJson, Out, has_desktop
from allpull.cli.say import answer, answer_json, note
from allpull.cli.verb import Verb, VerbGroup, example
from allpull.errors import BadInput
from allpull.output_folder import make_folder

if TYPE_CHECKING:
    from allpull.labs.notebook import Done

Number = TypeVar("Number", int, float)

WRONG = 3  # exit code: a student's program is not right

lab = typer.Typer(
    cls=VerbGroup,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="Labs for teaching, each one command and one page.",
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

    answer("\n".join(f"allpull lab {name:11}{about}" for name, about in LABS.items()))


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
    program: Annotated[
        Path | None, typer.Option("--program", metavar="FILE", help="Run and check a program of your own.")
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
    """Watch gradient descent walk over the map of its loss.

    With --program the exit code is 3 if the program is wrong.
    """
    from allpull.labs.notebook import sgd as do  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.labs.sgd_page import reason  # noqa: PLC0415  as above

    done = do(
        batch=batch,
        epochs=epochs,
        rate=rate,
        samples=samples,
        seed=seed,
        ranks=ranks,
        share=share,
        without=without,
        program=program,
        out=out,
    )
    _show(done, output or Path("lab-sgd.html"), figures, open_page=open_page, as_json=as_json)
    check = done.result.program
    if check is not None and check.update is not None:
        note(reason(check))
        raise typer.Exit(WRONG)


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
    """Watch chunks move around a ring, and count what ranks send."""
    from allpull.labs.notebook import ring as do  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.units import parse_bytes  # noqa: PLC0415  as above

    done = do(ranks, size_bytes=parse_bytes(size), link=link, latency=latency, out=out)
    _show(done, output or Path("lab-ring.html"), figures, open_page=open_page, as_json=as_json)


@lab.command("straggler", cls=Verb, epilog=example("allpull lab straggler -n 4"))
def straggler(  # noqa: PLR0917  as above
    fault: Annotated[
        Literal["slow-rank", "slow-loader", "thin-link"] | None,
        typer.Option("--fault", help="Only this one. [default: all three]"),
    ] = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", metavar="N", help="Ranks, 3 or more.")] = 4,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of the ranks at fault and the order of cases. [default: drawn]")
    ] = None,
    output: Page = None,
    figures: Figures = None,
    out: Out = Path("runs"),
    open_page: Open = True,
    as_json: AsJson = False,
) -> None:
    """Guess from a timeline which rank holds up the others, and why.

    This takes about a minute: each fault is rehearsed with real ranks, and so is the cluster without faults.
    """
    from allpull.labs.notebook import straggler as do  # noqa: PLC0415  pydantic is not needed for --help
    from allpull.labs.straggler import FAULTS  # noqa: PLC0415  as above

    done = do(ranks, faults=FAULTS if fault is None else (fault,), seed=seed, out=out)
    if done.result.left_out:
        note(done.result.left_out)
    _show(done, output or Path("lab-straggler.html"), figures, open_page=open_page, as_json=as_json)


@lab.command("overlap", cls=Verb, epilog=example("allpull lab overlap --buckets 1,25,100"))
def overlap(  # noqa: PLR0917  as above
    ranks: Annotated[int, typer.Option("-n", "--ranks", metavar="N", help="Ranks, 2 or more.")] = 2,
    buckets: Annotated[
        str, typer.Option("--buckets", metavar="MIB,MIB…", help="Bucket sizes to try, in MiB.")
    ] = "1,4,10,25,100",
    output: Page = None,
    figures: Figures = None,
    out: Out = Path("runs"),
    open_page: Open = True,
    as_json: AsJson = False,
) -> None:
    """See what backward hides of the exchange, by bucket size.

    This takes about a minute: each size is a run of its own, with real ranks.
    """
    from allpull.labs.notebook import overlap as do  # noqa: PLC0415  pydantic is not needed for --help

    refusal = BadInput(f"--buckets: '{buckets}' is not a list of sizes", hint="such as --buckets 1,25,100")
    done = do(ranks, buckets_mib=_listed(buckets, float, refusal), out=out)
    _show(done, output or Path("lab-overlap.html"), figures, open_page=open_page, as_json=as_json)


@lab.command("batch", cls=Verb, epilog=example("allpull lab batch -n 2 --seeds 5"))
def batch(  # noqa: PLR0917  as above
    batches: Annotated[
        str, typer.Option("--batches", metavar="B,B…", help="Global batches, in samples.")
    ] = "32,64,128,256,512,1024",
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", metavar="N", help="Ranks, one CPU each. [default: one per CPU, up to 4]"),
    ] = None,
    target: Annotated[
        float, typer.Option("--target", metavar="A", help="Accuracy on the test images, 0.5 to 1.")
    ] = 0.95,
    epochs: Annotated[int, typer.Option("--epochs", metavar="E", help="Give a training up after these.")] = 40,
    seeds: Annotated[int, typer.Option("--seeds", metavar="K", help="Trainings of each point.")] = 3,
    rate: Annotated[float, typer.Option("--rate", metavar="R", help="Learning rate of the smallest batch.")] = 0.03,
    warmup: Annotated[
        float, typer.Option("--warmup", metavar="E", help="Epochs in which a scaled rate is reached.")
    ] = 5.0,
    output: Page = None,
    figures: Figures = None,
    open_page: Open = True,
    as_json: AsJson = False,
) -> None:
    """Train digits with small and large batches: which arrives first?"""
    from allpull.labs.notebook import batch as do  # noqa: PLC0415  pydantic is not needed for --help

    refusal = BadInput(f"--batches '{batches}': whole numbers between commas", hint="such as 32,128,512")
    done = do(
        _listed(batches, int, refusal),
        ranks=ranks,
        target=target,
        epochs=epochs,
        seeds=seeds,
        rate=rate,
        warmup=warmup,
        progress=note,
    )
    _show(done, output or Path("lab-batch.html"), figures, open_page=open_page, as_json=as_json)


def _listed(text: str, number: Callable[[str], Number], refusal: BadInput) -> list[Number]:
    """The numbers of ``text``, which commas separate; raises ``refusal`` where it is something else.

    >>> _listed("1,2.5", float, BadInput("no list"))
    [1.0, 2.5]
    """
    try:
        return [number(part) for part in text.split(",")]
    except ValueError:
        raise refusal from None


def _show(done: Done[Any], output: Path, figures: Path | None, *, open_page: bool, as_json: bool) -> None:
    """Write the page of a lab, and say where; as JSON print its facts too."""
    if figures is not None:
        make_folder(figures, hint="choose another folder (--figures)")
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
