"""The lab of the ring: real ranks sum by hand over sockets, and the kernel counts what they receive."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from allpull.errors import BadInput
from allpull.labs.ranks import free_port, run_here, run_ranks
from allpull.schema.base import tag
from allpull.schema.labs import Algorithm, CountedExchange, RingMessage, RingResult, TimedExchange
from allpull.units import parse_rate_bytes_per_s, parse_time_s

MOST_RANKS = 16  # of which a chunk's sum names each: 2^rank is exact in float32
SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
LARGEST = 1 << 26
NUMBER_BYTES = 4
REPEATS = 5
PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLab:
    """Sum ``size_bytes`` over ``ranks``: within this machine, or each on a virtual host with a ``link`` of its own.

    ``link`` and ``latency`` are written as in a cluster file: 100 Mbit/s, 0.2 ms. Virtual hosts need root.
    """

    ranks: int = 4
    size_bytes: int = 1 << 20
    link: str = ""
    latency: str = "0.1 ms"

    def check(self) -> None:
        """Whether this can be done.

        Raises:
            BadInput: it cannot; says why.
        """
        if not 2 <= self.ranks <= MOST_RANKS:
            raise BadInput(f"-n {self.ranks}: a ring that can be drawn has 2 to {MOST_RANKS} ranks")
        least = self.ranks * NUMBER_BYTES
        if not least <= self.size_bytes <= LARGEST or self.size_bytes % NUMBER_BYTES:
            raise BadInput(
                f"--size: {self.size_bytes:,} bytes; {least} bytes to 64 MiB can be summed, {NUMBER_BYTES} at a time",
                hint="such as --size 1MiB",
            )
        if self.link:
            parse_rate_bytes_per_s(self.link)
            parse_time_s(self.latency)

    @property
    def sizes(self) -> list[int]:
        """Bytes that are summed, in order; the lab's own size is the last."""
        least = self.ranks * NUMBER_BYTES
        return [*(size for size in SIZES if least <= size < self.size_bytes), self.size_bytes]


def run_ring(lab: RingLab, out: Path = Path("runs")) -> RingResult:
    """Do ``lab``. On virtual hosts it is a job, whose run directory is made in ``out``.

    Raises:
        BadInput: it cannot be done here.
        AllpullError: a rank failed.
    """
    lab.check()
    program = files("allpull.labs.programs").joinpath("ring_by_hand.py")
    with as_file(program) as script, tempfile.TemporaryDirectory(prefix="allpull-lab-") as folder:
        arguments = [str(script), folder, f"--sizes={','.join(map(str, lab.sizes))}", f"--repeats={REPEATS}"]
        if lab.link:
            cluster = Path(folder, "cluster.toml")
            cluster.write_text(
                f'[cluster]\nhosts = {lab.ranks}\nlink = "{lab.link}"\nlatency = "{lab.latency}"\n', encoding="utf-8"
            )
            run_ranks(arguments, lab.ranks, "lab-ring", out, launcher=f"rehearse:{cluster}")
        else:
            run_here([*arguments, f"--port={free_port()}"], lab.ranks, PATIENCE_S)
        ranks = [json.loads(Path(folder, f"rank-{rank}.json").read_text("utf-8")) for rank in range(lab.ranks)]
    return _result(lab, ranks)


def _result(lab: RingLab, ranks: Sequence[Mapping[str, Any]]) -> RingResult:
    whole = [one for one in _exchanges(ranks) if one.ranks == lab.ranks and one.size_bytes == lab.size_bytes]
    exchanges = [_counted(one.algorithm, lab, ranks) for one in whole]
    ring = next(one for one in exchanges if one.algorithm == "ring")
    return RingResult(
        schema=tag("lab"),
        ranks=lab.ranks,
        size_bytes=lab.size_bytes,
        link=lab.link or None,
        right=all(one["right"] for rank in ranks for one in rank["exchanges"]),
        messages_per_rank=max(ring.messages_per_rank),
        bytes_per_rank=max(ring.bytes_per_rank),
        formula_messages=2 * (lab.ranks - 1),
        formula_bytes=2 * (lab.ranks - 1) / lab.ranks * lab.size_bytes,
        exchanges=exchanges,
        times=list(_exchanges(ranks)),
        messages=[
            RingMessage(sender=rank["rank"], **message)
            for step in range(2 * (lab.ranks - 1))
            for rank in ranks
            for message in rank["messages"][step : step + 1]
        ],
        summed=[[rank["inside"][step] for rank in ranks] for step in range(2 * lab.ranks - 1)],
    )


def _exchanges(ranks: Sequence[Mapping[str, Any]]) -> Iterator[TimedExchange]:
    """Every exchange: median and range over its repetitions of the slowest rank."""
    for each in zip(*(rank["exchanges"] for rank in ranks), strict=True):
        slowest = [max(times) for times in zip(*(one["times_s"] for one in each), strict=True)]
        first = each[0]
        yield TimedExchange(
            algorithm=first["algorithm"],
            ranks=first["ranks"],
            size_bytes=first["size_bytes"],
            seconds=statistics.median(slowest),
            least_seconds=min(slowest),
            most_seconds=max(slowest),
        )


def _counted(algorithm: Algorithm, lab: RingLab, ranks: Sequence[Mapping[str, Any]]) -> CountedExchange:
    """What each rank sent by ``algorithm``: bytes as the kernels of the others counted them on arrival."""
    own = [
        one
        for rank in ranks
        for one in rank["exchanges"]
        if (one["algorithm"], one["ranks"], one["size_bytes"]) == (algorithm, lab.ranks, lab.size_bytes)
    ]
    received = [sum(one["received"].values()) for one in own]
    sent = [sum(one["received"].get(str(rank), 0) for one in own) for rank in range(lab.ranks)]
    return CountedExchange(
        algorithm=algorithm,
        messages_per_rank=[round(one["messages"]) for one in own],
        bytes_per_rank=[round(size) for size in sent],
        busiest_bytes=round(max(one + other for one, other in zip(sent, received, strict=True))),
    )
