"""The page of the lab of the ring: chunks that move, messages and bytes that were counted, times that were taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from allpull.report.colours import RUNS
from allpull.report.html.block import Block, Chart, Part, Points, Slider, Table, Text, Tile, Tiles
from allpull.report.html.chart import LINE_KEY, data, spec
from allpull.report.page import Page
from allpull.schema.labs import RingResult, TimedExchange
from allpull.units import show_bytes, show_time

MOMENT = "moment"
NAMES = {"ring": "ring", "tree": "tree", "naive": "naive (all to rank 0)"}
MOST_NAMED = 6  # ranks, beyond which a chunk shows how many are in it and not which


def page(result: RingResult) -> Page:
    """The page that shows ``result``."""
    where = f"links of {result.link}" if result.link else "within one machine"
    return Page(
        kicker="Lab: all-reduce on a ring",
        subject=f"{result.ranks} ranks sum {show_bytes(result.size_bytes)}, and none sends more than another",
        facts=f"{result.ranks} processes · {where} · counted at the sockets",
        blocks={"chunks": _chunks(result), "counts": _counts(result), "time": _time(result), "questions": _questions()},
        made="from what the kernels counted",
    )


def _chunks(result: RingResult) -> Block:
    ranks = result.ranks
    rows = [
        {
            "place": step,
            "rank": f"rank {rank}",
            "chunk": f"{chunk}",
            "count": inside.bit_count(),
            "label": _inside(inside, ranks),
            "new": step > 0 and result.summed[step - 1][rank][chunk] != inside,
        }
        for step, of_ranks in enumerate(result.summed)
        for rank, of_chunks in enumerate(of_ranks)
        for chunk, inside in enumerate(of_chunks)
    ]
    order = [f"rank {rank}" for rank in range(ranks)]
    chunks = [f"{chunk}" for chunk in range(ranks)]
    x = alt.X("chunk:N", title="Chunk", sort=chunks, axis=alt.Axis(orient="top", labelAngle=0))
    y = alt.Y("rank:N", title=None, sort=order)
    at = alt.Chart(data(rows)).transform_filter(f"datum.place == {MOMENT}")
    colour = alt.Color("count:Q", scale=alt.Scale(domain=[1, ranks], range=["#E8F1F8", "#0072B2"]), legend=None)
    cells = at.mark_rect(stroke="white", strokeWidth=2).encode(x=x, y=y, color=colour)
    fresh = at.transform_filter("datum.new").mark_rect(fillOpacity=0, stroke=RUNS[1], strokeWidth=3).encode(x=x, y=y)
    ink = alt.condition(f"datum.count > {0.6 * ranks}", alt.value("white"), alt.value("#1C2430"))
    labels = at.mark_text(fontWeight=600).encode(x=x, y=y, text="label:N", color=ink)
    heat = Chart(
        slug="chunks",
        title="Whose numbers are in each chunk of each rank",
        caption="Framed: arrived in this step. Dark: all ranks are in the sum.",
        height_px=max(150, 46 * ranks),
        axis_characters=8,
        spec=spec(alt.layer(cells, fresh, labels).add_params(alt.param(name=MOMENT, value=len(result.summed) - 1))),
    )
    half = ranks - 1
    slider = Slider(
        name=MOMENT,
        label="Step",
        texts=[
            "before the first step: each rank has its own numbers alone",
            *(_step(result, s) for s in range(2 * half)),
        ],
    )
    lead = (
        f"Each rank cuts its numbers into {ranks} chunks. In {half} steps the ring adds (reduce-scatter): every rank "
        f"sends one chunk to the next and adds the one that arrives. Then in {half} more it passes the sums on "
        "(all-gather). In each step all links are busy."
    )
    return Block(title="Chunks that move", lead=lead, parts=[heat, slider])


def _inside(bits: int, ranks: int) -> str:
    """Whose numbers are in a chunk: of which ranks, or of how many."""
    if ranks > MOST_NAMED:
        return f"{bits.bit_count()}"
    return "+".join(str(rank) for rank in range(ranks) if bits >> rank & 1)


def _step(result: RingResult, step: int) -> str:
    kind = "adds" if step < result.ranks - 1 else "passes on"
    sent = [one for one in result.messages if one.step == step]
    moves = ", ".join(f"{one.sender}→{one.receiver} chunk {one.chunk}" for one in sent[:8])
    return f"step {step + 1} of {2 * (result.ranks - 1)}, the ring {kind}: {moves}" + (", …" if len(sent) > 8 else "")


def _counts(result: RingResult) -> Block:
    rows = [
        {"algorithm": NAMES[one.algorithm], "rank": f"{rank}", "mb": size / 1e6, "place": rank}
        for one in result.exchanges
        for rank, size in enumerate(one.bytes_per_rank)
    ]
    bars = alt.Chart(data(rows)).mark_bar().encode(
        x=alt.X("rank:N", title="Rank", sort=alt.SortField("place"), axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("algorithm:N", sort=list(NAMES.values())),
        y=alt.Y("mb:Q", title="MB sent"),
        color=alt.Color("algorithm:N", scale=_colours(), legend=alt.Legend()),
    )  # fmt: skip
    chart = Chart(
        slug="bytes",
        title="What each rank sends",
        caption="Bytes that the kernels of the receivers counted on their sockets for one all-reduce.",
        height_px=220,
        key_characters=22,
        spec=spec(bars),
    )
    tiles = Tiles(
        tiles=[
            Tile(
                value=f"{result.messages_per_rank}",
                label="messages per rank, counted",
                detail=f"2(N−1) = {result.formula_messages}",
            ),
            Tile(
                value=f"{result.bytes_per_rank:,} B",
                label="sent per rank, counted",
                detail=f"2(N−1)/N · S = {result.formula_bytes:,.0f} B",
            ),
            Tile(value="yes" if result.right else "NO", label="every rank has the sum", detail="each place compared"),
        ]
    )
    seconds = {one.algorithm: _with_range(one) for one in _whole(result)}
    table = Table(
        caption="One all-reduce by three algorithms",
        columns=["", "Messages of the busiest", "Sent and received by the busiest", "Time"],
        rows=[
            [
                NAMES[one.algorithm],
                f"{max(one.messages_per_rank):,}",
                show_bytes(one.busiest_bytes),
                seconds[one.algorithm],
            ]
            for one in result.exchanges
        ],
    )
    lead = (
        "The ring sends the same from every rank, and never more than twice the gradients, however many ranks. "
        "The naive way moves all of it through rank 0; the tree takes few steps, but sends everything in each."
    )
    return Block(title="Counted", lead=lead, parts=[tiles, chart, table])


def _with_range(one: TimedExchange) -> str:
    if one.least_seconds is None or one.most_seconds is None:
        return show_time(one.seconds)
    return f"{show_time(one.seconds)} ({show_time(one.least_seconds)} to {show_time(one.most_seconds)})"


def _whole(result: RingResult) -> list[TimedExchange]:
    return [one for one in result.times if one.ranks == result.ranks and one.size_bytes == result.size_bytes]


def _colours() -> alt.Scale:
    return alt.Scale(domain=list(NAMES.values()), range=[RUNS[0], RUNS[2], RUNS[1]])


def _times(slug: str, title: str, x: alt.X, times: Sequence[TimedExchange]) -> Chart:
    rows: list[dict[str, Any]] = [
        {
            "algorithm": NAMES[one.algorithm],
            "ranks": one.ranks,
            "bytes": one.size_bytes,
            "ms": 1e3 * one.seconds,
            "least": None if one.least_seconds is None else 1e3 * one.least_seconds,
            "most": None if one.most_seconds is None else 1e3 * one.most_seconds,
        }
        for one in times
    ]
    y = alt.Y("ms:Q", title="ms", scale=alt.Scale(type="log"), axis=alt.Axis(format="~g", labelOverlap=True))
    colour = alt.Color("algorithm:N", scale=_colours(), legend=LINE_KEY)
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=colour)
    lines = base.mark_line(point=True, strokeWidth=2).encode(strokeDash=alt.StrokeDash("algorithm:N", legend=None))
    ranges = base.transform_filter("isValid(datum.least)").mark_rule().encode(y="least:Q", y2="most:Q")
    return Chart(
        slug=slug,
        title=title,
        caption="Median and range of five sums, each the time of its slowest rank. The time axis is logarithmic.",
        height_px=230,
        key_characters=22,
        spec=spec(alt.layer(ranges, lines)),
    )


def _time(result: RingResult) -> Block:
    full = [one for one in result.times if one.ranks == result.ranks]
    largest = [one for one in result.times if one.size_bytes == result.size_bytes]
    size = alt.X(
        "bytes:Q", title="Bytes of the gradients", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format="~s")
    )
    ranks = alt.X("ranks:O", title="Ranks", axis=alt.Axis(labelAngle=0))
    if result.link:
        where = (
            f"Each rank is on a virtual host with a real, shaped link of {result.link}: small sums cost latency, large "
        )
        where += "ones bytes."
    else:
        where = (
            "All ranks share the memory and the CPUs of one machine, so these times are of that and of Python. For "
            "those of a network, --link '100 Mbit/s' gives each rank a virtual host (Linux, root)."
        )
    fastest = [f"{_fastest(full, at)} for {show_bytes(at)}" for at in (full[0].size_bytes, result.size_bytes)]
    lead = f"{where} Fastest here: {', '.join(dict.fromkeys(fastest))}."
    parts: list[Part] = [
        _times("time-size", f"Time against size, on {result.ranks} ranks", size, full),
        _times("time-ranks", f"Time against ranks, for {show_bytes(result.size_bytes)}", ranks, largest),
        Text(
            text="NCCL chooses for each call: it estimates latency + bytes ÷ bandwidth for ring, tree and others, for "
            "each size and number of ranks, and takes the smallest. Hence the tree for small sizes or very many ranks, "
            "the ring for large sizes; switches that add up themselves (NVLS, SHARP) where there are any. Gloo has the "
            "ring. NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=TUNING prints its table.",
        ),
    ]
    return Block(title="Timed", lead=lead, parts=parts)


def _fastest(times: Sequence[TimedExchange], size_bytes: int) -> str:
    """The algorithm whose slowest sum beats all others' fastest; none, where ranges overlap."""
    best, *others = sorted((one for one in times if one.size_bytes == size_bytes), key=lambda one: one.seconds)
    if any((best.most_seconds or best.seconds) >= (one.least_seconds or one.seconds) for one in others):
        return "no algorithm clearly"
    return best.algorithm


def _questions() -> Block:
    items = [
        "Before you move the slider: which chunk is the first that is complete, on which rank, after how many steps?",
        "Double the ranks. What happens to the messages, to the bytes per rank, to the time of a small sum?",
        "Why is a gradient of 25 MB sent in one bucket reduced later, but faster, than in 25 buckets of 1 MB?",
        "What would the naive way need at rank 0 to be as fast as the ring on 8 ranks?",
    ]
    return Block(title="Exercises", lead="Guess first, then count.", parts=[Points(items=items)])
