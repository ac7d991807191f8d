"""``allpull predict``: what the next cluster sizes will do, from runs or from a table of rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from allpull.cli import completion
from allpull.cli import target_options as options
from allpull.cli.options import AsJson, SkipDamaged
from allpull.cli.say import answer_json, note, show_result
from allpull.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from allpull.schema.forecast import ForecastResult
    from allpull.schema.predicted import PredictResult

R = TypeVar("R", "ForecastResult", "PredictResult")

EXAMPLE = "allpull predict runs/one runs/two --ranks 8,64,1024"

MOST_DIGITS = 18  # of a number of ranks: what is too large for a forecast is refused there
REFUSED = 3  # exit code: these measurements cannot tell
OF_RUNS = ("hosts", "ranks_per_host", "batch", "global_batch", "probe", "link", "latency", "what_if", "html")
"""Parameters that a forecast from a table does not take."""

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Short runs of one training on one or two numbers of ranks, folders of them, or a study.",
        metavar="RUN…",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
Ranks = Annotated[str | None, typer.Option("--ranks", metavar="N,…", help="Numbers of ranks to predict.")]
Hosts = Annotated[
    str | None, typer.Option("--hosts", metavar="N,…", help="Hosts of each of them. [default: full as in the runs]")
]
PerHost = Annotated[
    int | None, typer.Option("--ranks-per-host", metavar="N", min=1, help="Instead of --hosts: ranks of each host.")
]
Batch = Annotated[
    float | None, typer.Option("--batch", metavar="N", help="Samples per rank and step. [default: as in the runs]")
]
GlobalBatch = Annotated[
    float | None,
    typer.Option("--global-batch", metavar="N", help="Samples per step of all ranks: strong scaling."),
]
Probes = Annotated[
    list[Path] | None,
    typer.Option(
        "--probe",
        metavar="DIR",
        help="A run of allpull probe allreduce, loader or storage; may be given several times.",
        autocompletion=completion.runs,
    ),
]
Link = Annotated[
    str | None,
    typer.Option("--link", metavar="RATE", help="Line rate between hosts, such as 25Gbit/s: stated, not measured."),
]
Latency = Annotated[
    str | None, typer.Option("--latency", metavar="TIME", help="Latency of a hop between hosts, such as 20us: stated.")
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="KEY=VALUE",
        help="A change to forecast as well, such as link=x2, bucket=25MiB, accumulation=4 or slow-rank=removed; may be "
        "given several times.",
    ),
]
Calibrate = Annotated[
    int | None,
    typer.Option(
        "--calibrate",
        metavar="N",
        help="How many of the smallest sizes to predict from; others are held back. [default: all runs; 2 of a table]",
    ),
]
Table = Annotated[
    Path | None,
    typer.Option(
        "--table", metavar="FILE.csv", help="Instead of runs: a table of rates by size; without it, the published one."
    ),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write the forecast as one self-contained page.")
]
Series = Annotated[str | None, typer.Option("--series", metavar="NAME", help="Series of the table.")]


def predict(  # noqa: PLR0917  typer reads the options
    runs: Runs = None,
    ranks: Ranks = None,
    hosts: Hosts = None,
    ranks_per_host: PerHost = None,
    batch: Batch = None,
    global_batch: GlobalBatch = None,
    probe: Probes = None,
    link: Link = None,
    latency: Latency = None,
    target: options.Accuracy = None,
    epochs: options.Epochs = None,
    epochs_from: options.EpochsFrom = None,
    epoch_samples: options.EpochSamples = None,
    price: options.PriceText = None,
    watts: options.Watts = None,
    host_watts: options.HostWatts = None,
    checkpoint: options.Checkpoint = None,
    checkpoint_every: options.CheckpointEvery = None,
    restart: options.Restart = None,
    failures: options.Failures = None,
    what_if: WhatIf = None,
    calibrate: Calibrate = None,
    table: Table = None,
    series: Series = None,
    html: Html = None,
    as_json: AsJson = False,
    skip_damaged: SkipDamaged = False,
) -> None:
    """Predict larger sizes from short runs, or from a table of rates.

    From runs: each step in terms (compute, input, lateness, exchange), with a 90 % interval, and the measurement that
    would narrow it. From a table, with --series: its larger sizes from its smallest. Exit code 3: these measurements
    cannot tell.
    """
    given = dict(locals())
    if runs and (table is not None or series is not None):
        raise BadInput("runs and a table were given", hint="predict from RUN… or from --series, not from both")
    if not runs:
        _from_table(given)
        return
    from allpull.api.forecasting import predict as predict_runs  # noqa: PLC0415  numpy is not needed for --help

    result = predict_runs(
        runs[0] if len(runs) == 1 else runs,
        _numbers(ranks or "", "--ranks"),
        hosts=None if hosts is None else _numbers(hosts, "--hosts"),
        ranks_per_host=ranks_per_host,
        batch=batch,
        global_batch=global_batch,
        calibrate=calibrate,
        probes=probe or (),
        link=link,
        latency=latency,
        target=options.target_request(given),
        what_if=what_if or (),
        skip_damaged=skip_damaged,
    )
    _answer_runs(result, html, as_json=as_json)


def _answer_runs(result: ForecastResult, html: Path | None, *, as_json: bool) -> None:
    """Write the page of a forecast to ``html``, and print it."""
    from allpull.report.terminal.forecast import forecast  # noqa: PLC0415  rich is not needed for --help

    if html is not None:
        from allpull.report.forecast_page import write  # noqa: PLC0415  altair is not needed without a page

        note(f"page: {write(result, html)}")
    _answer(result, forecast, as_json=as_json)


def _from_table(given: Mapping[str, Any]) -> None:
    """The larger sizes of a series of a table, from the parameters of the command.

    Raises:
        BadInput: neither runs nor a series are named, or an option is for runs.
    """
    without = next((name for name in (*OF_RUNS, *options.NAMES) if given[name] is not None), None)
    if without is not None:
        raise BadInput(f"--{without.replace('_', '-')} is for a forecast from runs", hint=EXAMPLE)
    table, series, calibrate = given["table"], given["series"], given["calibrate"]
    from allpull.predict.table.series import PUBLISHED, predict_series  # noqa: PLC0415
    from allpull.report.terminal.predict import predicted  # noqa: PLC0415

    if series is None:
        raise BadInput(
            "neither runs nor a series are named",
            hint="allpull predict RUN… --ranks 8,64; or add --series NAME, which is in the column series of the table",
        )
    sizes = _numbers(given["ranks"] or "", "--ranks")
    result = predict_series(table or PUBLISHED, series, calibrate=2 if calibrate is None else calibrate, ranks=sizes)
    _answer(result, predicted, as_json=given["as_json"])


def _answer(result: R, rendered: Callable[[R], RenderableType], *, as_json: bool) -> None:
    """Print a result; exit code 3 where it is a refusal."""
    if as_json:
        answer_json(result)
    else:
        show_result(rendered(result))
    if result.refused is not None:
        raise typer.Exit(REFUSED)


def _numbers(text: str, option: str) -> list[int]:
    """The numbers of a list such as ``8,64``.

    Raises:
        BadInput: there is something else in it.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal() and len(word) <= MOST_DIGITS)]
    if wrong:
        raise BadInput(f"{option} {text!r}: {wrong[0]!r} is no number", hint=f"such as {option} 8,64,1024")
    return [int(word) for word in words]
