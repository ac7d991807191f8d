"""The page of the lab of the global batch: time to the target, the two factors it is made of, and more ranks."""

from __future__ import annotations

import altair as alt

from allpull.labs.batch import RULES
from allpull.labs.batch_charts import Measure, Rows, against_batch, published_chart, ranks_chart, row
from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Block, Chart, Part, Points, Slider, Table, Text, Tile, Tiles
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.report.page import Page
from allpull.schema.labs import BatchPoint, BatchResult, OverSeeds, RateRule
from allpull.units import counted, show_count, show_time

MOMENT = "moment"
NAMES: dict[RateRule, str] = {"fixed": "fixed rate", "scaled": "scaled rate", "warmup": "scaled rate, warm-up"}
SHORT_NAMES: dict[RateRule, str] = {"fixed": "fixed", "scaled": "scaled", "warmup": "warm-up"}
MOST_CURVES = 3  # seeds whose accuracies are drawn


def page(result: BatchResult) -> Page:
    """The page that shows ``result``."""
    best = fastest(result)
    subject = (
        f"No global batch reaches {_percent(result.target)} within {result.max_epochs} epochs"
        if best is None
        else f"A global batch of {best.global_batch:,} is the fastest; a larger one is not faster"
        if best.global_batch < result.batches[-1]
        else f"A global batch of {best.global_batch:,}, the largest, is the fastest here"
    )
    facts = (
        f"{result.samples:,} digits · target {_percent(result.target)} · "
        f"{counted(len(result.trainings), 'training')} on {_up_to(result.ranks)} · {show_time(result.seconds)}"
    )
    return Page(
        kicker="Lab: more ranks need not be faster",
        subject=subject,
        facts=facts,
        blocks={
            "time": _time(result, best),
            "factors": _factors(result),
            "curves": _curves(result),
            "ranks": _ranks(result, best),
            "published": _published(result),
            "exercises": _exercises(),
            "points": Block(title="All points", lead="What the charts are drawn from.", parts=[_table(result)]),
        },
        made="from trainings on this machine",
    )


def fastest(result: BatchResult) -> BatchPoint | None:
    """The point on all ranks with the least median time; None: no median reaches the target."""
    timed = [one for one in _on(result) if one.seconds.median is not None]
    return min(timed, key=lambda one: one.seconds.median or 0.0, default=None)


def _on(result: BatchResult, rule: RateRule | None = None) -> list[BatchPoint]:
    """The points on all ranks."""
    return [one for one in result.points if one.ranks == result.ranks and rule in {None, one.rule}]


def _up_to(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"1 to {ranks} ranks"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _time(result: BatchResult, best: BatchPoint | None) -> Block:
    tiles = []
    if best is not None:
        tiles.append(
            Tile(
                value=f"{best.global_batch:,}",
                label="fastest global batch",
                detail=f"{NAMES[best.rule]}: {_spread(best.seconds)} s",
            )
        )
    for batch in (result.batches[0], result.batches[-1]):
        own = [one for one in _on(result) if one.global_batch == batch]
        quickest = min(own, key=lambda one: (one.seconds.median is None, one.seconds.median or -one.reached))
        tiles.append(
            Tile(
                value="never" if quickest.seconds.median is None else f"{quickest.seconds.median:.2g} s",
                label=f"to the target with a batch of {batch:,}",
                detail=f"{NAMES[quickest.rule]}: {quickest.reached} of {quickest.trainings} trainings reach it",
            )
        )
    chart = against_batch(
        result,
        Measure(slug="time", title="Time to the target", unit="s"),
        {
            name: [row(one, one.seconds, one.spent_seconds, result) for one in _on(result, rule)]
            for rule, name in NAMES.items()
        },
    )
    lead = (
        f"Each point is {counted(result.seeds, 'training')} on {counted(result.ranks, 'real rank')}, until "
        f"{_percent(result.target)} of the test images are right. A larger batch trains more samples per second, but "
        "needs more epochs: time is epochs × samples ÷ samples per second."
    )
    return Block(title="Time to the target", lead=lead, parts=[Tiles(tiles=tiles), chart])


def _spread(value: OverSeeds) -> str:
    if value.median is None:
        return "not reached" if value.low is None else f"not reached (best {value.low:.3g})"
    return f"{value.median:.3g} ({value.low:.3g} to {'never' if value.high is None else f'{value.high:.3g}'})"


def _table(result: BatchResult) -> Table:
    rows = [
        [
            SHORT_NAMES[one.rule],
            f"{one.global_batch:,}",
            f"{one.ranks}",
            f"{one.rate:.3g}",
            show_count(one.samples_per_s.median or 0.0),
            _spread(one.epochs),
            _spread(one.seconds),
            f"{one.reached} of {one.trainings}",
        ]
        for one in result.points
    ]
    return Table(
        caption="Median (range) over the seeds",
        columns=["Rule", "Global batch", "Ranks", "Rate", "Samples/s", "Epochs", "Time in s", "Reached"],
        rows=rows,
        tones={(at, 7): "poor" for at, one in enumerate(result.points) if one.reached < one.trainings},
    )


def _factors(result: BatchResult) -> Block:
    speeds: dict[str, Rows] = {}
    for one in result.points:
        if one.rule == "warmup":
            speeds.setdefault(counted(one.ranks, "rank"), []).append(row(one, one.samples_per_s, 0.0, result))
    speed = against_batch(
        result,
        Measure(slug="speed", title="Samples per second, with warm-up", unit="samples/s", axis_format="~s"),
        speeds,
    )
    epochs = against_batch(
        result,
        Measure(slug="epochs", title="Epochs to the target", unit="epochs"),
        {
            name: [row(one, one.epochs, one.spent_epochs, result) for one in _on(result, rule)]
            for rule, name in NAMES.items()
        },
        result.fit,
    )
    lead = (
        f"Fixed rate: {result.rate:g} for every batch. Scaled rate: {result.rate:g} × batch ÷ {result.batches[0]}. "
        f"Warm-up: from {result.rate:g} to that in {result.warmup_epochs:g} epochs (Goyal et al. 2017). The optimizer "
        "is SGD with a momentum of 0.9."
    )
    more = (
        "Epochs belong to the global batch, not to the ranks that share it: the mean of equal parts is the gradient of "
        "the whole batch. Samples per second belong to the machine."
    )
    return Block(title="The two factors", lead=lead, parts=[speed, epochs, Text(text=more)])


def _curves(result: BatchResult) -> Block:
    rows = [
        {
            "place": result.batches.index(one.global_batch),
            "rule": NAMES[one.rule],
            "seed": one.seed,
            "epochs": round(at.epochs, 3),
            "accuracy": round(at.accuracy, 4),
        }
        for one in result.trainings
        if one.ranks == result.ranks and one.seed < MOST_CURVES
        for at in one.curve
    ]
    last = len(result.batches) - 1
    x = alt.X("epochs:Q", title="Epochs", scale=alt.Scale(domain=[0, result.max_epochs], nice=False))
    y = alt.Y(
        "accuracy:Q", title="Accuracy on test images", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%")
    )
    names = list(NAMES.values())
    lines = alt.Chart(data(rows)).transform_filter(f"datum.place == {MOMENT}")
    lines = lines.mark_line(strokeWidth=1.8, clip=True).encode(
        x=x,
        y=y,
        color=alt.Color("rule:N", scale=alt.Scale(domain=names, range=list(RUNS[: len(names)])), legend=LINE_KEY),
        strokeDash=alt.StrokeDash("rule:N", sort=names, legend=None),
        detail="seed:N",
        order="epochs:Q",
    )
    target = alt.Chart(data([{"accuracy": result.target}])).mark_rule(color=QUIET, strokeDash=[4, 3]).encode(y=y)
    chart = Chart(
        slug="curves",
        title="Accuracy while training",
        caption="One line per training, up to the evaluation that reaches the target (dashed) or the last epoch.",
        height_px=280,
        key_characters=20,
        spec=spec(alt.layer(target, lines).add_params(alt.param(name=MOMENT, value=last))),
    )
    slider = Slider(name=MOMENT, label="Global batch", texts=[curve_text(result, batch) for batch in result.batches])
    lead = "Move the slider: how does each rule train at a larger batch? A rate too large falls back or never starts."
    return Block(title="What happens on the way", lead=lead, parts=[chart, slider])


def curve_text(result: BatchResult, batch: int) -> str:
    """What the slider says of ``batch``: how many trainings of each rule reach the target."""
    own = {one.rule: one for one in _on(result) if one.global_batch == batch}
    reached = ", ".join(f"{NAMES[rule]} {own[rule].reached} of {own[rule].trainings}" for rule in RULES)
    return f"batch {batch:,}: target reached by {reached}"


def _ranks(result: BatchResult, best: BatchPoint | None) -> Block:
    first = result.batches[0]
    parts: list[Part] = [ranks_chart(result, best)]
    if best is not None and result.ranks > 1:
        speeds = ", ".join(
            f"{counted(one.ranks, 'rank')} {show_count(one.samples_per_s.median or 0.0)}"
            for one in result.points
            if one.rule == "warmup" and one.global_batch == best.global_batch
        )
        text = (
            f"Samples per second with a batch of {best.global_batch:,}: {speeds}. The network is so small that "
            "exchanging its gradients can take longer than computing them."
        )
        parts.append(Text(text=text))
    if result.forecast:
        last = result.forecast[-1]
        text = (
            f"The forecast takes the epochs measured at each global batch, and samples per second as if {last.ranks} "
            f"ranks had {last.ranks} times those of one, which is the best case. Even so, {last.ranks} ranks take "
            f"{show_time(last.seconds)} and not {show_time(last.seconds_if_epochs_stayed)}, because the epochs grow. "
            "On real ranks, the exchange of gradients comes on top."
        )
        parts.append(Text(text=text))
    lead = (
        f"Measured on {_up_to(result.ranks)} of this machine: each rank is a process with one thread. Adding ranks at "
        f"{first} samples each enlarges the global batch; sharing one batch makes each rank's part smaller."
    )
    return Block(title="More ranks", lead=lead, parts=parts)


def _published(result: BatchResult) -> Block:
    known = result.published
    chart = published_chart(known)
    source = Text(text=f"Source: {known.source}, edition {known.edition}. Not measured here.", quiet=True)
    lead = (
        "Epochs grow with the global batch at a thousand times the size too. Recipe, target and data differ, so the "
        "numbers do not compare with those above; each batch of this recipe has a rate and a warm-up of its own."
    )
    return Block(title="Published beside it", lead=lead, parts=[chart, source])


def _exercises() -> Block:
    items = [
        "Before you look: which batch trains the most samples per second, and which reaches the target first?",
        "With a fixed rate, how do the epochs grow when the batch doubles? How many updates is that?",
        "Which batch is the first that the scaled rate cannot train, and what does the warm-up change?",
        "Run it with --target 0.9 and 0.97. Does the best batch move, and why?",
        "Your site offers 64 times the ranks. Which of the measured numbers do you need before you ask for them?",
    ]
    return Block(title="Exercises", lead="Guess first, then run.", parts=[Points(items=items)])
