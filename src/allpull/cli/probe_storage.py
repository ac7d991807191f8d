"""``allpull probe storage``: what a file system gives, to one host and to several at once."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import rmtree
from typing import Annotated

import typer

from allpull.cli.options import AsJson, Out, ProbeSets
from allpull.cli.probe_options import Duration, Where, measure, parse_counts, parse_seconds
from allpull.cli.say import answer, answer_json, note
from allpull.errors import BadInput
from allpull.units import parse_bytes

EXAMPLE = "allpull probe storage /scratch --sizes 4KiB,1MiB"

MOST_THREADS = 1024
PAGE_BYTES, MOST_READ_BYTES = 4096, 1 << 26
LEAST_FILE_BYTES, MOST_FILE_BYTES = 1 << 22, 1 << 40

Place = Annotated[Path, typer.Argument(help="A folder on the storage to measure.", metavar="PATH")]
Hosts = Annotated[
    int | None,
    typer.Option(
        "-n", "--ranks", help="Ranks, one process each; 1, 2, 4 … of them read at once. [default: one per host]"
    ),
]
Sizes = Annotated[str, typer.Option("--sizes", help="Sizes of random reads: multiples of 4 KiB.")]
Threads = Annotated[str, typer.Option("--threads", help="Threads per rank, such as 1,4.")]
FileSize = Annotated[str, typer.Option("--file-size", help="Size of each rank's own file.")]


def storage(  # noqa: PLR0917  one parameter an option, called by typer alone
    place: Place,
    ranks: Hosts = None,
    sizes: Sizes = "4KiB,128KiB,1MiB",
    threads: Threads = "1,4",
    file_size: FileSize = "256MiB",
    duration: Duration = "1s",
    launcher: Where = None,
    sets: ProbeSets = None,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Time a file system.

    Bytes/s and operations/s by size and threads, from one host and from several at once.
    """
    from allpull.analyse.probes.storage import stored  # noqa: PLC0415  numpy is not needed for --help
    from allpull.jobs.placement import is_here  # noqa: PLC0415
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.probe.disk import check_space  # noqa: PLC0415
    from allpull.report.terminal.probe import storage_table  # noqa: PLC0415
    from allpull.rundir.read.probes import read_probe  # noqa: PLC0415
    from allpull.schema.probes import StorageAnswer  # noqa: PLC0415

    file_bytes, read_bytes = parse_bytes(file_size), parse_reads(sizes)
    if not max(LEAST_FILE_BYTES, *read_bytes) <= file_bytes <= MOST_FILE_BYTES:
        raise BadInput(
            f"--file-size {file_size} is not between 4 MiB and 1 TiB, or smaller than a read", hint="such as 1GiB"
        )
    request = ProbeRequest(name="storage", ranks=ranks, launcher=launcher, sets=sets or (), min_ranks=1)
    spec = specification(request, notify=note)
    folder = place.resolve()
    name = f".allpull-probe-{os.urandom(6).hex()}"
    options: dict[str, object] = {
        "path": str(folder),
        "name": name,
        "sizes": read_bytes,
        "threads": parse_counts(threads, "--threads", most=MOST_THREADS),
        "file_bytes": file_bytes // PAGE_BYTES * PAGE_BYTES,
        "seconds": parse_seconds(duration),
    }
    if is_here(spec):
        check_space(folder, file_bytes * spec.launch.ranks)
    try:
        record, directory = measure("storage", spec, out, options)
    finally:  # ranks clean up behind themselves, but for one that was killed
        for left in folder.glob(f"{name}-*"):
            rmtree(left, ignore_errors=True)
    result = stored(read_probe(directory, "storage", StorageAnswer), record.id)
    answer_json(result) if as_json else answer(storage_table(result))


def parse_reads(text: str) -> list[int]:
    """Sizes of reads in bytes, smallest first.

    Raises:
        BadInput: one is no multiple of a page, or too large.

    >>> parse_reads("1MiB,4KiB")
    [4096, 1048576]
    """
    sizes = {parse_bytes(word.strip()) for word in text.split(",")}
    bad = next((size for size in sorted(sizes) if size % PAGE_BYTES or not 0 < size <= MOST_READ_BYTES), None)
    if bad is not None:
        raise BadInput(
            f"--sizes {text}: {bad:,} bytes is no multiple of 4 KiB up to 64 MiB", hint="such as --sizes 4KiB,1MiB"
        )
    return sorted(sizes)
