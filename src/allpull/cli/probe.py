"""``allpull probe``: micro-benchmarks of what limits a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from allpull.cli.options import AsJson, Out, ProbeSets
from allpull.cli.probe_compute import compute
from allpull.cli.probe_loader import loader
from allpull.cli.probe_options import Ranks, Where, measure, parse_seconds
from allpull.cli.probe_storage import storage
from allpull.cli.say import answer, answer_json, note
from allpull.cli.verb import Verb, VerbGroup, example
from allpull.errors import BadInput
from allpull.units import parse_bytes

MAX_SIZE = 1 << 34
SIZES = "8,64KiB,1MiB,8MiB,64MiB"

probe = typer.Typer(
    cls=VerbGroup,
    help="Measure what limits a job.\n\nCollectives, clocks, data loading, storage and computing.",
    epilog=example("allpull probe allreduce -n 2"),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@probe.command(cls=Verb, epilog=example("allpull probe allreduce -n 4 --sizes 1MiB,64MiB"))
def allreduce(  # noqa: PLR0917  one parameter an option, called by typer alone
    ranks: Ranks = None,
    launcher: Where = None,
    sets: ProbeSets = None,
    sizes: Annotated[str, typer.Option("--sizes", help="Message sizes, such as 8MiB,64MiB.")] = SIZES,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Time all-reduces by size.

    Algorithm and bus bandwidth of each size, and the latency and link rate that fit them.
    """
    from allpull.analyse.probes.allreduce import reduced  # noqa: PLC0415  numpy is not needed for --help
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.report.terminal.probe import allreduce_table  # noqa: PLC0415
    from allpull.rundir.read.probes import read_probe  # noqa: PLC0415
    from allpull.schema.probes import AllreduceAnswer  # noqa: PLC0415

    request = ProbeRequest(
        name="allreduce", ranks=ranks, launcher=launcher, sets=sets or (), accepts=("parallel.backend",)
    )
    spec = specification(request, notify=note)
    if spec.launch.ranks == 1:
        raise BadInput("-n 1: a single rank has nothing to reduce", hint="such as -n 2")
    record, directory = measure("allreduce", spec, out, {"sizes": parse_sizes(sizes)})
    result = reduced(read_probe(directory, "allreduce", AllreduceAnswer), record.id, len(record.hosts))
    answer_json(result) if as_json else answer(allreduce_table(result))


@probe.command(cls=Verb, epilog=example("allpull probe clock --launcher ssh:hosts.txt --for 10s"))
def clock(  # noqa: PLR0917  as above
    ranks: Ranks = None,
    launcher: Where = None,
    sets: ProbeSets = None,
    duration: Annotated[str, typer.Option("--for", metavar="TIME", help="Time spent on each host.")] = "10s",
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Compare the clocks of all hosts with that of the first.

    Offset and drift of each, with bounds that are never exceeded.
    """
    from allpull.analyse.probes.clock import pinged  # noqa: PLC0415  as above
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.report.terminal.probe import clock_table  # noqa: PLC0415
    from allpull.rundir.read.probes import read_probe  # noqa: PLC0415
    from allpull.schema.probes import ClockAnswer  # noqa: PLC0415

    seconds = parse_seconds(duration)
    request = ProbeRequest(name="clock", ranks=ranks, launcher=launcher, sets=sets or ())
    record, directory = measure("clock", specification(request, notify=note), out, {"seconds": seconds})
    result = pinged(read_probe(directory, "clock", ClockAnswer), record.id, record.hosts)
    answer_json(result) if as_json else answer(clock_table(result))


for verb in (loader, storage, compute):
    probe.command(cls=Verb, epilog=example(sys.modules[verb.__module__].EXAMPLE))(verb)


def parse_sizes(text: str) -> list[int]:
    """Sizes in bytes, whole float32 numbers, smallest first.

    Raises:
        BadInput: one is no size, or too small or too large.

    >>> parse_sizes("8MiB,1kB,10")
    [8, 1000, 8388608]
    """
    sizes = {parse_bytes(word.strip()) // 4 * 4 for word in text.split(",")}
    out_of_range = [size for size in sizes if not 4 <= size <= MAX_SIZE]
    if out_of_range:
        raise BadInput(
            f"--sizes {text}: {out_of_range[0]} bytes is not between 4 B and 16 GiB", hint="such as --sizes 1MiB,64MiB"
        )
    return sorted(sizes)
