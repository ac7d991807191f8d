"""The results of probes on a terminal: a table, and what it means in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from allpull.report.wording import rate
from allpull.schema.compared import PlacedProbe, PlacementResult
from allpull.schema.probed import (
    ComputeBuckets,
    ComputeFit,
    ComputePoint,
    ComputeResult,
    LoaderResult,
    Spread,
    StoragePoint,
    StorageResult,
)
from allpull.schema.probes import LoaderShuffle
from allpull.schema.results import AllreduceResult, ClockResult, Interval, RingFit
from allpull.units import counted, percent, show_bytes, show_count, show_spread, show_time

MOST_HOSTS = 8  # named
NOISY = 1.25  # 95th percentile over the fastest of the same work, from which on results say little
STORAGE_WAYS = {
    "direct": "Reads went past the page cache (O_DIRECT); caches of servers and disks are in the results.",
    "dropped": "Reads went through the page cache, which was emptied before each repetition: {why}.",
    "cached": "Reads came from memory, not from the storage: {why}.",
}


def allreduce_table(result: AllreduceResult) -> str:
    """The table of nccl-tests, and the fit in words."""
    lines = [f"{'size':>12} {'count':>12} {'type':>6} {'redop':>6} {'time':>12} {'algbw':>10} {'busbw':>10}"]
    lines.append(f"{'(B)':>12} {'(elements)':>12} {'':>6} {'':>6} {'(us)':>12} {'(GB/s)':>10} {'(GB/s)':>10}")
    for one in result.results:
        rates = f"{one.algbw_bytes_per_s / 1e9:>10.3f} {one.busbw_bytes_per_s / 1e9:>10.3f}"
        count = one.size_bytes // 4
        lines.append(f"{one.size_bytes:>12} {count:>12} {'float':>6} {'sum':>6} {one.time_s * 1e6:>12.1f} {rates}")
    lines.append(_ring_fit(result.fit))
    return "\n".join(lines)


def placements_table(result: PlacementResult) -> str:
    """Where the ranks were on both sides, a line per size, and the notes."""
    lines = [f"{name:>6}: {_place(side)}" for name, side in (("before", result.before), ("after", result.after))]
    head = ("size", "before", "after", "after ÷ before", f"{percent(result.confidence)} interval", "after is")
    rows = [
        (
            show_bytes(one.size_bytes),
            show_time(one.before_s),
            show_time(one.after_s),
            f"{one.ratio.value:.3f}",
            "?" if one.ratio.low is None or one.ratio.high is None else f"{one.ratio.low:.3f} to {one.ratio.high:.3f}",
            one.decision,
        )
        for one in result.sizes
    ]
    return "\n".join([*lines, "", _table(head, rows), "", *(f"Note: {note}." for note in result.notes)]).rstrip()


def _place(side: Sequence[PlacedProbe]) -> str:
    """Hosts and leaf switches of the probes of a side."""
    hosts = list(dict.fromkeys(host for one in side for host in one.hosts))
    switches = list(dict.fromkeys(switch for one in side for switch in one.switches or ()))
    named = f", leaf switch{'es' if len(switches) > 1 else ''} {', '.join(switches)}" if switches else ""
    probes = f" ({len(side)} probes)" if len(side) > 1 else ""
    shown = ", ".join(hosts[:MOST_HOSTS]) + (
        f" and {len(hosts) - MOST_HOSTS:,} more" if len(hosts) > MOST_HOSTS else ""
    )
    return f"{counted(side[0].ranks, 'rank')} on {shown}{named}{probes}"


def _ring_fit(fit: RingFit | None) -> str:
    """What the fit says, with how well it holds."""
    if fit is None:
        return "No fit: it needs two ranks and two sizes, and times that grow with the size."
    latency = f"{show_time(fit.latency_s.value)} ({_interval_range(fit.latency_s, show_time)})"
    link = f"{rate(fit.link_bytes_per_s.value)} ({_interval_range(fit.link_bytes_per_s, rate)})"
    return f"Ring fit: {latency} per message, {link} per link; off by at most {100 * fit.worst_error:.0f} %."


def _interval_range(interval: Interval, show: Callable[[float], str]) -> str:
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


def loader_table(result: LoaderResult) -> str:
    """The table, and what it means in words."""
    workers = "workers" if result.kind == "files" else "threads"
    head = ("files", "ranks", workers, "samples/s", "of 9 in 10 windows", "per core", "read", "in cache")
    rows = [
        (
            one.state,
            f"{one.ranks}",
            f"{one.threads}",
            show_count(one.samples_per_s.median),
            _range_of(one.samples_per_s),
            "?" if one.samples_per_cpu_s is None else show_count(one.samples_per_cpu_s),
            "" if one.state == "memory" else rate(one.read_bytes_per_s),
            "" if one.state == "memory" else "?" if one.resident is None else percent(one.resident),
        )
        for one in result.points
    ]
    return "\n".join([_table(head, rows), "", *_loader_sentences(result)])


def _loader_sentences(result: LoaderResult) -> Iterator[str]:
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
            one = "worker" if result.kind == "files" else "thread"
            enough = f"{counted(knee.threads, one)} {'give' if knee.threads > 1 else 'gives'}"
            yield f"Knee ({ranks}): {enough} 95 % of the highest rate or more."
        else:
            yield f"Knee ({ranks}): not reached; the largest number tried is the fastest."
    if result.shuffle is not None:
        yield from _shuffle_sentences(result.shuffle)
    if result.odd:
        yield f"{result.odd:,} odd records: see the log of rank 0."
    yield from (f"Left out: {reason}." for reason in result.left_out)


def _shuffle_sentences(shuffle: LoaderShuffle) -> Iterator[str]:
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


def _range_of(spread: Spread) -> str:
    """From where to where nine of ten repetitions lie."""
    return f"{show_count(spread.low)} to {show_count(spread.high)}"


def storage_table(result: StorageResult) -> str:
    """The table, and what it means in words."""
    several = result.hosts > 1
    head = ["operation", "size", "hosts", "ranks", "threads", "per second", "9 in 10", "bytes/s", "per host"]
    head += ["of a lone host"] if several else []
    rows = [_storage_row(one, several=several) for one in result.points]
    return "\n".join([_table(head, rows), "", *_storage_sentences(result)])


def _storage_row(one: StoragePoint, *, several: bool) -> list[str]:
    """One line."""
    share = "" if one.of_alone is None else percent(one.of_alone)
    return [
        one.op,
        show_bytes(one.size_bytes) if one.size_bytes else "",
        f"{one.hosts}",
        f"{one.ranks}",
        f"{one.threads}",
        show_count(one.ops_per_s.median),
        _range_of(one.ops_per_s),
        "" if one.bytes_per_s is None else rate(one.bytes_per_s.median),
        show_count(one.per_host_ops_per_s),
        *([share] if several else []),
    ]


def _storage_sentences(result: StorageResult) -> Iterator[str]:
    """One sentence a line."""
    kind = f" ({result.file_system})" if result.file_system else ""
    yield f"{result.path}{kind}: a file of {show_bytes(result.file_bytes)} per rank, which has been removed."
    yield STORAGE_WAYS[result.way].format(why=result.why)
    yield (
        f"This process can do {show_count(result.ceiling_ops_per_s)} reads per second from memory with one thread: "
        "rates near it do not measure the storage. stat and open find what create has just left in this host's caches."
    )


def compute_table(result: ComputeResult) -> str:
    """The table, and what it means in words."""
    issued = any(one.issue_s is not None for one in result.points)
    head = ["precision", "threads", "batch", "step", "9 in 10", "forward", "backward", "optimizer"]
    head += [*(["issue"] if issued else []), "images/s", "FLOP/s", "of matmul"]
    rows = [_compute_row(one, issued=issued) for one in result.points]
    return "\n".join([_table(head, rows), "", *_compute_sentences(result)])


def _compute_row(one: ComputePoint, *, issued: bool) -> list[str]:
    """One line."""
    return [
        one.precision,
        f"{one.threads}",
        f"{one.batch}",
        show_time(one.step_s.median),
        f"{show_time(one.step_s.low)} to {show_time(one.step_s.high)}",
        *(show_time(part) for part in (one.forward_s, one.backward_s, one.optimizer_s)),
        *(["" if one.issue_s is None else show_time(one.issue_s)] if issued else []),
        show_count(one.samples_per_s),
        "?" if one.flop_per_s is None else f"{show_count(one.flop_per_s / 1e9)} G",
        "?" if one.peak_share is None else percent(one.peak_share),
    ]


def _compute_sentences(result: ComputeResult) -> Iterator[str]:
    """One sentence a line."""
    yield (
        f"{result.model} on {result.device}: {result.parameters:,} parameters, {result.channels} × {result.size} × "
        f"{result.size} pixels, {result.classes:,} classes."
    )
    yield from (_fit_sentence(one) for one in result.fits if one.part == "step")
    for timing in result.buckets:
        yield _bucket_sentence(timing)
    for one in result.largest:
        next_one = "more was not tried" if one.too_large is None else f"{one.too_large:,} does not fit"
        each = "" if one.bytes_per_sample is None else f", {show_bytes(one.bytes_per_sample)} per sample"
        yield (
            f"Largest batch ({one.precision}): {one.batch:,} of {show_bytes(one.limit_bytes)}, at most "
            f"{show_bytes(one.peak_bytes)} in use{each}; {next_one}."
        )
    worst = max(one.p95_over_fastest for one in result.noise)
    busy = "; it is busy, so the results are uncertain" if worst > NOISY else ""
    yield f"Noise of the machine: the same work takes up to {worst:.2f} times as long as at best (95 %){busy}."
    yield from (f"Left out: {reason}." for reason in result.left_out)


def _fit_sentence(fit: ComputeFit) -> str:
    """What the line says, with how well it holds."""
    where = f"{fit.precision}, {fit.threads} thread{'s' * (fit.threads != 1)}"
    line = f"{_time_with_interval(fit.fixed_s)} + {_time_with_interval(fit.per_sample_s)} per sample"
    off = f"off by at most {percent(fit.worst_error)}"
    if fit.knee is None or fit.floor_s is None:
        return f"Step ({where}): {line}; {off}. No launch-bound knee among these batches."
    knee = show_count(fit.knee.value)
    if fit.knee.low is not None and fit.knee.high is not None:
        knee += f" ({show_count(fit.knee.low)} to {show_count(fit.knee.high)})"
    floor = f"but {_time_with_interval(fit.floor_s)} at least"
    return f"Step ({where}): {line}, {floor}; {off}. Launch-bound below batch {knee}."


def _time_with_interval(one: Interval) -> str:
    """A time with its interval."""
    if one.low is None or one.high is None:
        return show_time(one.value)
    return f"{show_time(one.value)} ({show_time(one.low)} to {show_time(one.high)})"


def _bucket_sentence(timing: ComputeBuckets) -> str:
    """When each bucket is ready."""
    each = ", ".join(f"{show_bytes(one.size_bytes)} at {percent(one.ready_share)}" for one in timing.buckets)
    return (
        f"Buckets ({timing.precision}, batch {timing.batch}): {each} of backward, which takes "
        f"{show_time(timing.backward_s.median)}."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns under their heads as text: the first left-aligned, the others right-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
