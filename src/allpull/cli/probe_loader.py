"""``allpull probe loader``: samples per second of a pack, without a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpull.cli.options import AsJson, Out, ProbeSets
from allpull.cli.probe_options import Duration, Where, measure, parse_counts, parse_names, parse_seconds, table
from allpull.cli.say import answer, note
from allpull.units import percent, show_bytes, show_count

if TYPE_CHECKING:
    from allpull.schema.probed import LoaderResult, Spread
    from allpull.schema.probes import LoaderShuffle

EXAMPLE = "allpull probe loader packs/train --threads 1,2,4"

STATES = ("cold", "warm", "cached")
MOST_THREADS, MOST_BATCH, MOST_SIZE = 1024, 1 << 16, 4096

Data = Annotated[str, typer.Argument(help="A pack, or the name of a data set.", metavar="PACK|DATA")]
Workers = Annotated[
    int | None,
    typer.Option(
        "-n", "--ranks", help="Ranks, one process each; 1, 2, 4 … of them load at once. [default: one per host]"
    ),
]
Threads = Annotated[
    str | None, typer.Option("--threads", help="Threads per rank, such as 1,2,4. [default: 1, 2, 4 … all cores]")
]
States = Annotated[
    str, typer.Option("--states", help="Page cache: empty (cold), as the cold pass leaves it (warm), full (cached).")
]
Batch = Annotated[int, typer.Option("--batch", min=1, max=MOST_BATCH, help="Samples per rank and batch.")]
Size = Annotated[
    int | None,
    typer.Option("--size", min=1, max=MOST_SIZE, help="Pixels per side. [default: the pack's; JPEG: 224]"),
]
Block = Annotated[int, typer.Option("--block", min=1, help="Shuffle blocks of this many neighbouring records.")]
Mixed = Annotated[int, typer.Option("--mixed", min=1, help="Blocks whose records are shuffled together.")]
ByFiles = Annotated[bool, typer.Option("--by-files", help="Each rank opens only its own files.")]


def loader(  # noqa: PLR0917  one parameter an option, called by typer alone
    data: Data,
    ranks: Workers = None,
    threads: Threads = None,
    states: States = "cold,warm,cached",
    batch: Batch = 64,
    size: Size = None,
    block: Block = 1,
    mixed: Mixed = 1,
    by_files: ByFiles = False,
    duration: Duration = "2s",
    launcher: Where = None,
    sets: ProbeSets = None,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Time the data loader without a model.

    Samples/s by threads and ranks, from disk and from memory.
    """
    from allpull.analyse.probes.loader import loaded  # noqa: PLC0415  numpy is not needed for --help
    from allpull.data.datasets.dataset import DATASETS  # noqa: PLC0415
    from allpull.jobs.placement import is_here  # noqa: PLC0415
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.probe.loader_data import USED_IN_MEMORY, USED_OF_PACKS, describe_input  # noqa: PLC0415
    from allpull.rundir.read.probes import read_probe  # noqa: PLC0415
    from allpull.schema.probes import LoaderAnswer  # noqa: PLC0415
    from allpull.schema.trainspec import DataSpec  # noqa: PLC0415

    in_memory = not Path(data).exists() and data in DATASETS.names()
    data_options = {"size": size or 0, "block": block, "mixed": mixed, "by_files": by_files}
    plain = asdict(DataSpec())
    sets = [
        *(sets or []),
        *(f"data.{key}={value}".lower() for key, value in data_options.items() if value != plain[key]),
    ]
    accepts = [f"data.{name}" for name in (USED_IN_MEMORY if in_memory else USED_OF_PACKS)]
    request = ProbeRequest(name="loader", ranks=ranks, launcher=launcher, sets=sets, accepts=accepts, min_ranks=1)
    spec = specification(request, notify=note)
    options: dict[str, object] = {
        "data": data if in_memory else str(Path(data).resolve()),
        "states": parse_names(states, "state of the page cache", STATES),
        "threads": parse_counts(threads, "--threads", most=MOST_THREADS) if threads else [],
        "batch": batch,
        "seconds": parse_seconds(duration),
    }
    if is_here(spec):
        describe_input(str(options["data"]), asdict(spec.data), batch=batch, ranks=spec.launch.ranks)
    record, directory = measure("loader", spec, out, options)
    result = loaded(read_probe(directory, "loader", LoaderAnswer), record.id)
    answer(result.model_dump_json(by_alias=True, indent=1) if as_json else loader_table(result))


def loader_table(result: LoaderResult) -> str:
    """The table, and what it means in words."""
    head = ("files", "ranks", "threads", "samples/s", "of 9 in 10 windows", "per core", "read", "in cache")
    rows = [
        (
            one.state,
            f"{one.ranks}",
            f"{one.threads}",
            show_count(one.samples_per_s.median),
            range_of(one.samples_per_s),
            "?" if one.samples_per_cpu_s is None else show_count(one.samples_per_cpu_s),
            "" if one.state == "memory" else f"{show_bytes(one.read_bytes_per_s)}/s",
            "" if one.state == "memory" else "?" if one.resident is None else percent(one.resident),
        )
        for one in result.points
    ]
    return "\n".join([table(head, rows), "", *sentences(result)])


def range_of(spread: Spread) -> str:
    """From where to where nine of ten repetitions lie."""
    return f"{show_count(spread.low)} to {show_count(spread.high)}"


def sentences(result: LoaderResult) -> Iterator[str]:
    """One sentence a line."""
    resized = f", resized by {result.resizer}" if result.resizer else ""
    yield (
        f"{result.records:,} records ({result.kind}) of {show_bytes(result.bytes_per_sample)} each; batches of "
        f"{result.batch} samples of {result.size} pixels a side{resized}; {result.cores} "
        f"core{'s' * (result.cores != 1)} per host."
    )
    for knee in result.knees:
        ranks = f"{knee.state}, {knee.ranks} rank{'s' * (knee.ranks != 1)}"
        if knee.threads is not None:
            enough = f"{knee.threads} thread{'s give' if knee.threads > 1 else ' gives'}"
            yield f"Knee ({ranks}): {enough} 95 % of the highest rate or more."
        else:
            yield f"Knee ({ranks}): not reached; the largest number of threads tried is the fastest."
    if result.shuffle is not None:
        yield from shuffle_words(result.shuffle)
    if result.odd:
        yield f"{result.odd:,} odd records: see the log of rank 0."
    yield from (f"Left out: {reason}." for reason in result.left_out)


def shuffle_words(shuffle: LoaderShuffle) -> Iterator[str]:
    """What the order is worth."""
    if shuffle.quality is not None:
        yield (
            f"Shuffle: {shuffle.quality:.2f} of a full one (share of neighbours that part); "
            f"{show_count(shuffle.records_per_read)} records per read."
        )
    if shuffle.seen_share < 1:
        labels = ""
        if shuffle.label_distance is not None and shuffle.label_distance_by_chance is not None:
            labels = (
                f"; their labels are off by up to {percent(shuffle.label_distance, 1)} "
                f"(by chance: {percent(shuffle.label_distance_by_chance, 1)})"
            )
        yield f"By files: a rank sees {percent(shuffle.seen_share)} of the records, the same in every epoch{labels}."
