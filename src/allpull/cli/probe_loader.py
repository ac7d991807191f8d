"""``allpull probe loader``: samples per second of a pack or of image files, without a model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import AsJson, Out, ProbeSets
from allpull.cli.probe_options import Duration, Where, measure, parse_counts, parse_names, parse_seconds
from allpull.cli.say import answer, answer_json, note

EXAMPLE = "allpull probe loader packs/train --threads 1,2,4"

STATES = ("cold", "warm", "cached")
MOST_THREADS, MOST_BATCH, MOST_SIZE = 1024, 1 << 16, 4096

Data = Annotated[
    str,
    typer.Argument(
        help="A pack, a folder of class folders of images, or the name of a data set.", metavar="PACK|FOLDER|DATA"
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "-n", "--ranks", help="Ranks, one process each; 1, 2, 4 … of them load at once. [default: one per host]"
    ),
]
Threads = Annotated[
    str | None,
    typer.Option(
        "--threads",
        help="Threads per rank, for image files worker processes, such as 1,2,4. [default: 1, 2, 4 … all cores]",
    ),
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
    from allpull.data.pack_format import INDEX  # noqa: PLC0415
    from allpull.jobs.placement import is_here  # noqa: PLC0415
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.probe.loader_data import (  # noqa: PLC0415
        USED_IN_MEMORY,
        USED_OF_FILES,
        USED_OF_PACKS,
        describe_input,
    )
    from allpull.report.terminal.probe import loader_table  # noqa: PLC0415
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
    of_files = Path(data).is_dir() and not (Path(data) / INDEX).exists()
    accepted = USED_IN_MEMORY if in_memory else USED_OF_FILES if of_files else USED_OF_PACKS
    accepts = [f"data.{name}" for name in accepted]
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
    answer_json(result) if as_json else answer(loader_table(result))
