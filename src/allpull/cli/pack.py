"""``allpull pack``: a data set as a few large files, made, described and verified."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpull.cli.options import AsJson
from allpull.cli.say import answer, note
from allpull.cli.verb import Verb, VerbGroup, example
from allpull.errors import AllpullError
from allpull.kernel import usable_cpus
from allpull.output_folder import make_folder
from allpull.report.printable import inert_json
from allpull.units import counted, parse_bytes, show_bytes, show_count, show_spread, show_time

if TYPE_CHECKING:
    from allpull.data.pack.plan import Forecast
    from allpull.data.pack.write import Written
    from allpull.data.sources import Listing

LINES_EVERY_S = 10.0  # of progress, where the output is no terminal
SHOWN_FAULTS = 12
SHOWN_CLASSES = 8
MAKE = "make"


class Damaged(AllpullError):
    """A pack that differs from what was written."""

    exit_code = 3


class PackVerbs(VerbGroup):
    """``pack SRC DST`` makes a pack: ``make`` is the default verb."""

    default = MAKE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default verb where none is given."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [MAKE, *args]
        return super().parse_args(ctx, args)


pack = typer.Typer(
    cls=PackVerbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Store a data set as a few large files.\n\n`pack SRC DST` is short for `pack make SRC DST`.",
    epilog=example("allpull pack imagenet/train packs/train"),
)

Source = Annotated[Path, typer.Argument(help="The data set: a folder, a tar file or an npz file.", metavar="SRC")]
Destination = Annotated[Path, typer.Argument(help="Folder for the pack; an unfinished pack is resumed.", metavar="DST")]
Directory = Annotated[Path, typer.Argument(help="A pack.", metavar="DIR")]
Kind = Annotated[
    str | None,
    typer.Option("--kind", help="jpeg, jpeg-restart, jpeg-side or raw. [default: jpeg for images, raw for arrays]"),
]
SourceName = Annotated[
    str | None,
    typer.Option("--source", help="imagefolder, tar, idx, bigearthnet or arrays. [default: from what SRC contains]"),
]
Classes = Annotated[int | None, typer.Option("--classes", min=1, help="Number of classes; BigEarthNet: 43 or 19.")]
Side = Annotated[
    int | None, typer.Option("--side", min=1, max=65535, help="Upper limit of the shorter side, in pixels.")
]
Quality = Annotated[int, typer.Option("--quality", min=1, max=100, help="Quality of re-encoded JPEGs.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, max=1024, help="Processes. [default: one per core]")]
ShardSize = Annotated[str, typer.Option("--shard-size", help="Largest size of a file.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the order of the records.")]
KeepOrder = Annotated[bool, typer.Option("--keep-order", help="Do not shuffle: keep the order of the source.")]
Only = Annotated[
    Path | None,
    typer.Option("--only", metavar="FILE", help="File with the names of the samples to take, one per line."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print how large the pack would be; write nothing.")]


@pack.command(MAKE, cls=Verb, epilog=example("allpull pack make imagenet/train packs/train --side 256"))
def make(  # noqa: PLR0917  one parameter an option, called by typer alone
    source: Source,
    destination: Destination,
    kind: Kind = None,
    source_name: SourceName = None,
    classes: Classes = None,
    side: Side = None,
    quality: Quality = 90,
    workers: Workers = None,
    shard_size: ShardSize = "1GiB",
    seed: Seed = 0,
    keep_order: KeepOrder = False,
    only: Only = None,
    dry_run: DryRun = False,
) -> None:
    """Make a pack of a data set, or complete an unfinished one.

    The word `make` may be left out.
    """
    from allpull.data.jpeg.restart import best_tool  # noqa: PLC0415
    from allpull.data.pack.encode import Recipe  # noqa: PLC0415  numpy is not needed for --help
    from allpull.data.pack.plan import Layout, check_space, forecast, plan  # noqa: PLC0415
    from allpull.data.pack.write import finished, write_pack  # noqa: PLC0415

    listing = _listing(source, source_name, classes, only)
    recipe = Recipe(
        kind=_kind(kind) or listing.source.kind,
        side=side,
        quality=quality,
        tool=best_tool(),
        dtype=listing.source.dtype,
    )
    layout = Layout(seed=None if keep_order else seed, shard_bytes=parse_bytes(shard_size))
    planned = plan(listing, recipe, layout)
    if not dry_run:
        make_folder(destination, hint="choose another folder")
    if finished(destination, planned) is None:
        cores = workers or usable_cpus()
        expected = forecast(planned)
        note(_forecast_line(expected, len(planned.entries), cores))
        if not dry_run:
            check_space(expected, destination)
    if dry_run:
        return
    with _progress(len(planned.entries)) as progress:
        done = write_pack(planned, destination, workers=workers or usable_cpus(), progress=progress)
    for line in _done_lines(done):
        note(line)


@pack.command(cls=Verb, epilog=example("allpull pack info packs/train"))
def info(directory: Directory, as_json: AsJson = False) -> None:
    """Describe what a pack holds, and how it was made."""
    from allpull.data.pack.info import describe, lines  # noqa: PLC0415

    description = describe(directory)
    answer(inert_json(json.dumps(description, indent=1)) if as_json else "\n".join(lines(description)))


@pack.command(cls=Verb, epilog=example("allpull pack verify packs/train"))
def verify(directory: Directory, workers: Workers = None, as_json: AsJson = False) -> None:
    """Read every byte of a pack and name what is damaged.

    The exit code is 3 if anything is damaged.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from allpull.data.pack.verify import verify as look  # noqa: PLC0415

    with _progress(None) as progress:
        done = look(
            directory,
            threads=workers or usable_cpus(),
            progress=lambda shards, of: progress(shards, of, 0),
        )
    if as_json:
        answer(inert_json(json.dumps({"schema": "allpull/pack-verify/1.0", **asdict(done)}, indent=1)))
    else:
        shown = [*done.listed[:SHOWN_FAULTS]]
        more = done.faults - len(shown)
        answer("\n".join([*shown, *([f"and {more:,} more"] if more > 0 else [])]) if done.faults else _sound(done))
    if done.faults:
        raise Damaged(f"{directory}: {counted(done.faults, 'fault')}", hint="copy the pack again, or make it again")


def _sound(done: Any) -> str:
    return f"{done.records:,} records, {show_bytes(done.bytes)}: every byte is as written"


def _kind(word: str | None) -> Any:
    from allpull.data.pack_format import KINDS  # noqa: PLC0415
    from allpull.errors import UnknownName  # noqa: PLC0415

    if word is not None and word not in KINDS:
        raise UnknownName("kind of pack", word, KINDS)
    return word


def _listing(path: Path, name: str | None, classes: int | None, only: Path | None) -> Listing:
    from dataclasses import replace  # noqa: PLC0415

    from allpull.data.sources import SOURCES, guess, only_these  # noqa: PLC0415

    word = name or guess(path)
    listing: Listing = SOURCES.load(word)(path, classes)
    count = len(listing.source.classes)
    if only is not None:
        listing = replace(listing, entries=only_these(listing.entries, only))
    note(f"{path}: {word}, {counted(len(listing.entries), 'sample')}, {count:,} classes")
    if empty := _without_samples(listing):
        more = f" and {len(empty) - SHOWN_CLASSES:,} more" if len(empty) > SHOWN_CLASSES else ""
        note(f"warning: classes without a sample: {', '.join(empty[:SHOWN_CLASSES])}{more}")
    return listing


def _without_samples(listing: Listing) -> list[str]:
    """Classes without a sample; empty where samples have several labels, and the data set lists its classes itself."""
    if listing.source.multi_label:
        return []
    used = {label for entry in listing.entries for label in entry.labels}
    return [name for label, name in enumerate(listing.source.classes) if label not in used]


def _forecast_line(expected: Forecast, samples: int, cores: int) -> str:
    scale, unit = next(((2**power, unit) for power, unit in UNITS if expected.bytes >= 2**power), (1, "B"))
    size = show_spread(expected.bytes / scale, 2 * expected.error_bytes / scale)
    each = show_count(samples / expected.core_s) if expected.core_s else "?"
    wall = show_time(expected.core_s / cores)
    return (
        f"forecast from {expected.samples} samples: {size} {unit}, {each} samples/s per core: "
        f"{wall} on {cores} core{'s' * (cores != 1)}"
    )


def _done_lines(done: Written) -> Iterator[str]:
    header = done.header
    size = sum(shard.bytes for shard in header.shards)
    if done.resumed_from:
        yield "already complete" if done.whole else f"resumed from sample {done.resumed_from:,}"
    rate = (
        f", {show_count(header.records / done.elapsed_s)} samples/s" if done.elapsed_s and not done.resumed_from else ""
    )
    yield f"{counted(header.records, 'record')}, {show_bytes(size)} in {counted(len(header.shards), 'shard')}{rate}"
    for what, count in header.remarks.items():
        yield f"note: {count:,}: {what} (odd.txt)"
    if header.skipped:
        left_out = counted(header.skipped, "sample")
        yield f"warning: left out: {left_out}; {done.directory / 'skipped.txt'} says which and why"
    yield f"pack: {done.directory}"


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int, int, int], None]]:
    """A bar on a terminal, a line every few seconds elsewhere; both on stderr."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import Progress  # noqa: PLC0415

        from allpull.cli.progress import columns  # noqa: PLC0415

        with Progress(*columns(), console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("pack", total=total, state="")
            yield lambda done, of, size: bar.update(task, completed=done, total=of, state=show_bytes(size))
        return
    printed_s = time.monotonic()

    def show(done: int, of: int, size: int) -> None:
        nonlocal printed_s
        if time.monotonic() - printed_s > LINES_EVERY_S:
            printed_s = time.monotonic()
            note(f"{done:,} of {of:,}, {show_bytes(size)} written")

    yield show


UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))
