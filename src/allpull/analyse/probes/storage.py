"""Storage rates from the probe's repetitions, and each host's rate when several read at once over its rate alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allpull.analyse.probes.repetitions import scaled, spread
from allpull.schema.base import tag
from allpull.schema.probed import Spread, StoragePoint, StorageResult
from allpull.schema.probes import StorageAnswer, StorageMeasured, StorageOp, StoragePart

Kind = tuple[StorageOp, int, int]
"""Operation, size and threads."""


def stored(answer: StorageAnswer, run: str) -> StorageResult:
    """The storage probe's results as rates."""
    shared = StorageAnswer.model_fields.keys() & StorageResult.model_fields.keys() - {"schema_", "points"}
    alone = {
        (one.op, one.size_bytes, one.threads): _ops_per_s(one).median
        for one in answer.points
        if one.ranks == answer.ranks_per_host
    }
    return StorageResult(
        schema=tag("storage"),
        run=run,
        hosts=answer.ranks // answer.ranks_per_host,
        points=[_point(one, answer.ranks_per_host, alone) for one in answer.points],
        **{name: getattr(answer, name) for name in shared},
    )


def rate(parts: Sequence[StoragePart]) -> float:
    """Operations per second of all ranks in one repetition: the sum of their own rates.

    >>> rate([StoragePart(ops=10, seconds=2.0), StoragePart(ops=30, seconds=1.0)])
    35.0
    """
    return sum(one.ops / one.seconds for one in parts if one.seconds > 0)


def _ops_per_s(measured: StorageMeasured) -> Spread:
    return spread([rate(parts) for parts in measured.parts])


def _point(measured: StorageMeasured, ranks_per_host: int, alone: Mapping[Kind, float]) -> StoragePoint:
    ops_per_s, hosts = _ops_per_s(measured), -(-measured.ranks // ranks_per_host)
    each = ops_per_s.median / hosts
    reference = alone.get((measured.op, measured.size_bytes, measured.threads))
    whole = hosts > 1 and measured.ranks == hosts * ranks_per_host
    return StoragePoint(
        ranks=measured.ranks,
        hosts=hosts,
        threads=measured.threads,
        op=measured.op,
        size_bytes=measured.size_bytes,
        ops=sum(one.ops for parts in measured.parts for one in parts),
        ops_per_s=ops_per_s,
        bytes_per_s=scaled(ops_per_s, measured.size_bytes) if measured.size_bytes else None,
        per_host_ops_per_s=each,
        of_alone=each / reference if whole and reference else None,
    )
