"""What a profiler measured of buckets in some steps is what an explanation takes for them in all."""

from __future__ import annotations

import polars as pl
import pytest
from tests.analyse.program import MS, Program, records

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.collectives.traced_buckets import SCHEMA, BucketWindows
from allpull.explain.explanation import explain
from allpull.schema.gap import Gap


def test_buckets_take_as_long_as_profiler_windows_say() -> None:
    program = Program(bucket_ms=[16.0, 12.0, 8.0], sizes=[1, 1, 1000])
    rows = [(rank, 3, bucket, 9, 0, 0, ms * MS) for rank in (0, 1) for bucket, ms in enumerate([16, 12, 8])]
    seen = BucketWindows(
        times=pl.DataFrame(rows, schema=SCHEMA, orient="row"),
        read=2,
        gaps=(Gap(kind="profiler windows", text="one was torn"),),
    )
    by_bytes = explain(AlignedRun(records(program)))
    aligned = AlignedRun(records(program))
    vars(aligned)["buckets"] = seen  # as if they had been read
    found = explain(aligned)
    assert found.window is not None
    assert found.window.reductions is not None
    assert found.window.reductions.seconds[0] == pytest.approx([0.016, 0.012, 0.008], abs=1e-8)
    assert "One was torn" in found.result.notes
    assert by_bytes.window is not None
    assert by_bytes.window.reductions is not None
    assert by_bytes.window.reductions.seconds[0, 0] < 0.001
