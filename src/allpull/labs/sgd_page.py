"""The page of the lab of gradient descent: the map of the loss with the path on it, the loss, the fit, the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from allpull.labs import line
from allpull.report.colours import QUIET, RUNS
from allpull.report.html.block import Block, Chart, Notice, Part, Points, Slider, Table, Text, Tile, Tiles
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.report.page import Page
from allpull.schema.labs import Position, ProgramCheck, ProgramFault, SgdResult
from allpull.units import counted

MOMENT = "moment"
MAP = {"slope": (0.0, 4.0), "offset": (-0.5, 0.5)}
LEVELS = np.geomspace(0.002, 0.6, 9)  # of the loss above its minimum
MOST_DRAWN = 200  # of the samples
MOST_RANKS = 4  # with a path of their own on the map
FAULTS: dict[ProgramFault | None, str] = {
    "start": "it began with another line than `start` of the data, which rank 0 has and the others must get",
    "own gradient": "it applied the gradient of its own samples, which nobody averaged",
    "sum": "it applied the sum of the gradients of all ranks, where their mean is that of the whole batch",
    "same samples": "it computed on the samples of rank 0, not on its own",
    "no update": "it did not move",
    None: "what it applied is neither its own gradient, nor the sum, nor that of rank 0's samples",
}
"""What a student's program did wrong, as a clause."""


def page(result: SgdResult) -> Page:
    """The page that shows ``result``."""
    each = counted(result.ranks, "rank")
    blocks = {"path": _path(result), "fit": _fit(result)}
    if result.ranks > 1:
        blocks["ranks"] = _ranks(result)
    blocks["exercises"] = _exercises()
    return Page(
        kicker="Lab: gradient descent",
        subject=_subject(result),
        facts=f"{result.samples:,} samples · {result.epochs:,} epochs · {result.updates:,} updates · {each}",
        blocks=blocks,
        made="from what its ranks computed",
    )


def _subject(result: SgdResult) -> str:
    if result.program is not None:
        return _verdict(result.program, result.ranks)
    if result.differ or result.apart > 0:
        return f"Without {result.without}, the replicas part"
    if result.batch == result.samples:
        return "A full batch walks straight to the optimum"
    return f"With {result.batch:,} samples per update, the path wanders"


def _verdict(check: ProgramCheck, ranks: int) -> str:
    if check.update is None:
        return f"{check.program} is right: each of {ranks} ranks walks the path of one with the whole batch"
    place = "begins elsewhere" if check.update == 0 else f"leaves the path at update {check.update:,}"
    return f"{check.program} is wrong: rank {check.rank} {place}"


def reason(check: ProgramCheck) -> str:
    """What a program that is wrong does, as a sentence."""
    return f"What rank {check.rank} did there: {FAULTS[check.fault]}."


def _path(result: SgdResult) -> Block:
    moments = result.path
    parts: list[Part] = [
        Tiles(
            tiles=[
                Tile(
                    value=f"{result.loss_end:.4f}", label="loss at the end", detail="the noise alone has 1/12 = 0.0833"
                ),
                Tile(
                    value=f"{moments[-1].slope:.3f} · {moments[-1].offset:.3f}",
                    label="slope and offset",
                    detail=f"optimum {result.best.slope:.3f} and {result.best.offset:.3f}",
                ),
                Tile(
                    value=f"{moments[1].offset - result.best.offset:+.3f}",
                    label="error of the offset after one update",
                    detail=f"before it: {moments[0].offset - result.best.offset:+.3f}",
                ),
                Tile(
                    value="random" if result.shrinks is None else f"{100 * result.shrinks:.1f} %",
                    label="of the slope's error, gone per update",
                    detail="by the formula 1/12 = 8.3 % with a full batch",
                ),
            ]
        ),
        _map(result),
        _losses(result),
        Slider(name=MOMENT, label="Update", texts=[_at(one) for one in moments]),
    ]
    return Block(title="The path", lead=_lead(result), parts=parts)


def _lead(result: SgdResult) -> str:
    if result.without == "broadcast":
        return (
            "The ranks apply the same averaged gradient from different starts. It is zero where the mean of their "
            "lines is the optimum, so each stops beside it, and the loss of rank 0 stays above that of the noise."
        )
    if result.batch == result.samples:
        return (
            "Every update uses all samples, so the gradient is exact: the offset is right after one update, and the "
            "slope, in the flat direction of the valley, closes in by the same share each time."
        )
    return (
        "Each update uses a few samples, whose gradient points only roughly downhill. The path reaches the valley in a "
        "fraction of an epoch and then wanders around the optimum: the smaller the batch, the wider."
    )


def _at(one: Position) -> str:
    return f"update {one.update:,}: slope {one.slope:.3f}, offset {one.offset:.3f}, loss {one.loss:.4f}"


def _rows(path: Sequence[Position], **fields: Any) -> list[dict[str, Any]]:
    return [
        {
            "place": place,
            "update": one.update,
            "slope": round(one.slope, 5),
            "offset": round(one.offset, 5),
            "loss": round(one.loss, 6),
            **fields,
        }
        for place, one in enumerate(path)
    ]


def _moment(result: SgdResult) -> alt.Parameter:
    return alt.param(name=MOMENT, value=len(result.path) - 1)


def _map(result: SgdResult) -> Chart:
    points = line.samples(result.samples, result.seed)
    curves = [
        {"level": place, "corner": corner, "slope": round(float(slope), 4), "offset": round(float(offset), 4)}
        for place, curve in enumerate(line.contours(points, LEVELS))
        for corner, (slope, offset) in enumerate(curve)
    ]
    x = alt.X("slope:Q", title="Slope", scale=alt.Scale(domain=MAP["slope"]))
    y = alt.Y("offset:Q", title="Offset", scale=alt.Scale(domain=MAP["offset"]))
    map_ = alt.Chart(data(curves)).mark_line(color=QUIET, strokeWidth=1, opacity=0.55, clip=True)
    map_ = map_.encode(x=x, y=y, order="corner:O", detail="level:N")
    best = alt.Chart(data([{"slope": result.best.slope, "offset": result.best.offset, "name": "optimum"}]))
    best = best.mark_point(shape="cross", size=160, filled=True, color="#1C2430").encode(x=x, y=y)
    names = {rank.rank: f"rank {rank.rank}" for rank in result.by_rank[:MOST_RANKS]}
    rows = (
        [row for rank in result.by_rank[:MOST_RANKS] for row in _rows(rank.path, rank=names[rank.rank])]
        if result.by_rank
        else _rows(result.path, rank="path")
    )
    colour = alt.Color(
        "rank:N",
        scale=alt.Scale(domain=list(names.values()) or ["path"], range=list(RUNS[: max(1, len(names))])),
        legend=LINE_KEY if names else None,
    )
    walked = alt.Chart(data(rows)).transform_filter(f"datum.place <= {MOMENT}")
    path = walked.mark_line(strokeWidth=1.6, opacity=0.8, clip=True).encode(
        x=x, y=y, color=colour, order="place:O", strokeDash=alt.StrokeDash("rank:N", legend=None)
    )
    here = alt.Chart(data(rows)).transform_filter(f"datum.place == {MOMENT}")
    dot = here.mark_circle(size=110, opacity=1, clip=True).encode(x=x, y=y, color=colour)
    return Chart(
        slug="map",
        title="The loss as a map: where the path goes",
        caption="Curves of equal loss; the cross is the optimum, the dot the line at the chosen update.",
        height_px=380,
        key_characters=8,
        spec=spec(alt.layer(map_, path, dot, best).add_params(_moment(result))),
    )


def _losses(result: SgdResult) -> Chart:
    rows = [{**row, "update": row["update"] + 1} for row in _rows(result.path)]
    x = alt.X("update:Q", title="Update, counted from 1 (logarithmic)", scale=alt.Scale(type="log", nice=False))
    y = alt.Y("loss:Q", title="Mean squared error", scale=alt.Scale(zero=True))
    curve = alt.Chart(data(rows)).mark_line(color=RUNS[0], strokeWidth=1.6).encode(x=x, y=y)
    dot = alt.Chart(data(rows)).transform_filter(f"datum.place == {MOMENT}")
    dot = dot.mark_circle(size=110, opacity=1, color=RUNS[0]).encode(x=x, y=y)
    noise = alt.Chart(data([{"loss": 1 / 12}])).mark_rule(color=QUIET, strokeDash=[4, 3]).encode(y="loss:Q")
    return Chart(
        slug="loss",
        title="The loss, over all samples" + (", of rank 0" if result.ranks > 1 else ""),
        caption="Dashed: 1/12, the variance of noise that is uniform in ±0.5. No line can do better on average.",
        height_px=200,
        spec=spec(alt.layer(noise, curve, dot).add_params(_moment(result))),
    )


def _fit(result: SgdResult) -> Block:
    points = line.samples(result.samples, result.seed)
    every = max(1, result.samples // MOST_DRAWN)
    cloud = [
        {"x": float(x), "y": round(float(y), 4)} for x, y in zip(points.x[::every], points.y[::every], strict=True)
    ]
    ends = [
        {"place": place, "x": x, "y": round(one.slope * x + one.offset, 5)}
        for place, one in enumerate(result.path)
        for x in (-line.WIDTH, line.WIDTH)
    ]
    x, y = alt.X("x:Q", title="x"), alt.Y("y:Q", title="y")
    dots = alt.Chart(data(cloud)).mark_circle(color=QUIET, size=14, opacity=0.6).encode(x=x, y=y)
    fit = alt.Chart(data(ends)).transform_filter(f"datum.place == {MOMENT}").mark_line(color=RUNS[1], strokeWidth=3)
    chart = Chart(
        slug="fit",
        title="The samples and the line",
        caption=(
            f"Each of the {len(cloud):,} dots stands for {every:,} of the samples." if every > 1 else "All samples."
        )
        + (" The line is that of rank 0." if result.ranks > 1 else ""),
        height_px=280,
        spec=spec(alt.layer(dots, fit.encode(x=x, y=y)).add_params(_moment(result))),
    )
    slider = Slider(name=MOMENT, label="Update", texts=[_at(one) for one in result.path])
    return Block(title="The fit", lead="The task: y = 2x, with noise that is uniform in ±0.5.", parts=[chart, slider])


def _ranks(result: SgdResult) -> Block:
    parts: list[Part] = []
    if result.program is not None and result.program.update is not None:
        parts.append(Notice(title="What is wrong", items=[reason(result.program)]))
    if result.differ or result.apart > 0:
        parts.append(
            Notice(
                title="The replica check names what happened", items=[*_differences(result), _cause(result)], bad=True
            )
        )
    rows = [
        [
            f"rank {rank.rank}",
            f"{one[0]:+.4f}",
            f"{one[1]:+.4f}",
            f"{rank.path[1].slope:.4f}",
            f"{rank.path[1].offset:.4f}",
        ]
        for rank in result.by_rank
        for one in rank.gradient[:1]
    ]
    if len(rows) == result.ranks:
        mean = np.mean([rank.gradient[0] for rank in result.by_rank], axis=0)
        rows.append(["their mean", f"{mean[0]:+.4f}", f"{mean[1]:+.4f}", "", ""])
        columns = ["", "By the slope", "By the offset", "New slope", "New offset"]
        parts.append(Table(caption="The first update: each rank's own gradient", columns=columns, rows=rows))
    each = result.batch // result.ranks
    parts.append(Text(text=f"Each rank computes on {counted(each, 'sample')} of its own per update.", quiet=True))
    return Block(title="The ranks", lead=_ranks_lead(result), parts=parts)


def _differences(result: SgdResult) -> list[str]:
    return [
        f"Rank {one.rank}: from update {one.step} on its {one.tensor} is not that of rank 0."
        for one in result.differences
    ] or ["It names no rank."]


def _cause(result: SgdResult) -> str:
    """What the paths show: ranks that began apart and move alike, or that began together and part."""
    begins = [(rank.path[0].slope, rank.path[0].offset) for rank in result.by_rank]
    began = max(math.dist(one, other) for one in begins for other in begins)
    if began == 0:
        return (
            f"They began with the same line and are {result.apart:.3f} apart at the end: each applied a gradient of "
            "its own, which nobody averaged."
        )
    return (
        f"They were {began:.3f} apart before the first update and are {result.apart:.3f} apart at the end: the first "
        "parameters were not broadcast."
    )


def _ranks_lead(result: SgdResult) -> str:
    if result.without == "broadcast":
        return (
            "Each rank began with its own line. They apply the same gradient, so the distance between them stays as it "
            "was at the start. The mean of their lines goes to the optimum; no rank does."
        )
    if result.without == "average":
        return (
            "Each rank follows its own gradient: they train different models on parts of the data, and nothing fails."
        )
    path = "is" if result.program is None else "must be"
    return (
        "Each rank has its own part of the batch, and so its own gradient. The mean of equal parts is the gradient of "
        f"the whole batch: the path {path} that of one rank with all of it, and the same on each to the last bit."
    )


def _exercises() -> Block:
    items = [
        "Run the lab with --batch 1000, 100 and 1. Which path is the shortest, which the fastest per sample?",
        "Halve and double --rate. From which rate on does a full batch no longer converge, and why is it 1?",
        "Run it with -n 2, and again --without broadcast, and --without average. What does the loss curve tell?",
        "Write the program yourself, with DistributedDataParallel, and have it checked: -n 2 --program FILE.",
        "With -n 2 --share weak each rank has a whole batch. What is the same as with twice the --batch on one rank?",
    ]
    return Block(title="Exercises", lead="Guess first, then run.", parts=[Points(items=items)])
