"""``allpull probe``: micro-benchmarks of what limits a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allpull.cli.options import AsJson, Out, ProbeSets
from allpull.cli.probe_compute import compute
from allpull.cli.probe_loader import loader
from allpull.cli.probe_options import Ranks, Where, measure, parse_seconds
from allpull.cli.probe_storage import storage
from allpull.cli.say import answer, note
from allpull.cli.verb import Verb, example
from allpull.errors import BadInput
from allpull.units import parse_bytes, show_bytes, show_spread, show_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from allpull.schema.results import AllreduceResult, ClockOffset, ClockResult, Interval, RingFit

MAX_SIZE = 1 << 34
SIZES = "8,64KiB,1MiB,8MiB,64MiB"

probe = typer.Typer(
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
    from allpull.analyse.probes.allreduce import rates, ring_fit  # noqa: PLC0415  numpy is not needed for --help
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.rundir.read.probes import read_probe  # noqa: PLC0415
    from allpull.schema.base import tag  # noqa: PLC0415
    from allpull.schema.probes import AllreduceAnswer  # noqa: PLC0415
    from allpull.schema.results import AllreduceResult  # noqa: PLC0415

    request = ProbeRequest(
        name="allreduce", ranks=ranks, launcher=launcher, sets=sets or (), accepts=("parallel.backend",)
    )
    spec = specification(request, notify=note)
    if spec.launch.ranks == 1:
        raise BadInput("-n 1: a single rank has nothing to reduce", hint="such as -n 2")
    record, directory = measure("allreduce", spec, out, {"sizes": parse_sizes(sizes)})
    measured = read_probe(directory, "allreduce", AllreduceAnswer)
    result = AllreduceResult(
        schema=tag("allreduce"),
        run=record.id,
        ranks=measured.ranks,
        hosts=len(record.hosts),
        backend=measured.backend,
        device=measured.device,
        results=[rates(one.size_bytes, one.times_s, measured.ranks) for one in measured.results],
        fit=ring_fit({one.size_bytes: one.times_s for one in measured.results}, measured.ranks),
    )
    answer(result.model_dump_json(by_alias=True, indent=1) if as_json else allreduce_table(result))


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
    from allpull.jobs.probing import ProbeRequest, specification  # noqa: PLC0415
    from allpull.rundir.read.probes import read_probe  # noqa: PLC0415
    from allpull.schema.base import tag  # noqa: PLC0415
    from allpull.schema.probes import ClockAnswer  # noqa: PLC0415
    from allpull.schema.results import ClockResult  # noqa: PLC0415

    seconds = parse_seconds(duration)
    request = ProbeRequest(name="clock", ranks=ranks, launcher=launcher, sets=sets or ())
    record, directory = measure("clock", specification(request, notify=note), out, {"seconds": seconds})
    measured = read_probe(directory, "clock", ClockAnswer)
    offsets = [offset for one in measured.against for offset in compare_host(one.host, one.pings, record.hosts)]
    result = ClockResult(schema=tag("clock"), run=record.id, hosts=measured.hosts, offsets=offsets)
    answer(result.model_dump_json(by_alias=True, indent=1) if as_json else clock_table(result))


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
    odd = [size for size in sizes if not 4 <= size <= MAX_SIZE]
    if odd:
        raise BadInput(
            f"--sizes {text}: {odd[0]} bytes is not between 4 B and 16 GiB", hint="such as --sizes 1MiB,64MiB"
        )
    return sorted(sizes)


def compare_host(host: int, pings: list[list[int]], names: list[str]) -> list[ClockOffset]:
    """Offsets of one host on both clocks; pings are those that it sent to host 0."""
    from allpull.analyse.clock.ping_bounds import compare  # noqa: PLC0415
    from allpull.schema.results import ClockOffset  # noqa: PLC0415

    offsets: list[ClockOffset] = []
    kinds: tuple[tuple[Literal["monotonic", "realtime"], int], ...] = (("monotonic", 0), ("realtime", 4))
    for kind, first in kinds:
        estimate = compare([row[first : first + 4] for row in pings])
        offsets.append(
            ClockOffset(
                host=names[host] if host < len(names) else str(host),
                against=names[0] if names else "0",
                clock=kind,
                offset_s=-estimate.offset_s,  # they pinged host 0, so theta is host 0's clock minus theirs
                offset_bound_s=estimate.offset_bound_s,
                drift_ppm=None if estimate.drift is None else -1e6 * estimate.drift,
                drift_bound_ppm=None if estimate.drift_bound is None else 1e6 * estimate.drift_bound,
                round_trip_s=estimate.round_trip_s,
            )
        )
    return offsets


def allreduce_table(result: AllreduceResult) -> str:
    """The table of nccl-tests, and the fit in words."""
    lines = [f"{'size':>12} {'count':>12} {'type':>6} {'redop':>6} {'time':>12} {'algbw':>10} {'busbw':>10}"]
    lines.append(f"{'(B)':>12} {'(elements)':>12} {'':>6} {'':>6} {'(us)':>12} {'(GB/s)':>10} {'(GB/s)':>10}")
    for one in result.results:
        rates = f"{one.algbw_bytes_per_s / 1e9:>10.3f} {one.busbw_bytes_per_s / 1e9:>10.3f}"
        count = one.size_bytes // 4
        lines.append(f"{one.size_bytes:>12} {count:>12} {'float':>6} {'sum':>6} {one.time_s * 1e6:>12.1f} {rates}")
    lines.append(fit_words(result.fit))
    return "\n".join(lines)


def fit_words(fit: RingFit | None) -> str:
    """What the fit says, with how well it holds."""
    if fit is None:
        return "No fit: it needs two ranks and two sizes, and times that grow with the size."
    latency = f"{show_time(fit.latency_s.value)} ({_range(fit.latency_s, show_time)})"
    link = f"{show_bytes(fit.link_bytes_per_s.value)}/s ({_range(fit.link_bytes_per_s, show_bytes)} /s)"
    return f"Ring fit: {latency} per message, {link} per link; off by at most {100 * fit.worst_error:.0f} %."


def _range(interval: Interval, show: Callable[[float], str]) -> str:
    low = "?" if interval.low is None else show(interval.low)
    high = "?" if interval.high is None else show(interval.high)
    return f"{low} to {high}"


def clock_table(result: ClockResult) -> str:
    """One line per host and clock."""
    if not result.offsets:
        return "One host: there is nothing to compare."
    lines = []
    for one in result.offsets:
        offset = show_spread(one.offset_s * 1e6, one.offset_bound_s * 1e6)
        drift = "drift unknown, the probe was too short"
        if one.drift_ppm is not None and one.drift_bound_ppm is not None:
            drift = f"drift {show_spread(one.drift_ppm, one.drift_bound_ppm)} ppm"
        lines.append(f"{one.host:20} {one.clock:10} {offset} µs against {one.against}; {drift}")
    return "\n".join(lines)
