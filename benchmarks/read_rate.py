"""How fast step records are read and checked: records per second of a whole run directory.

    python benchmarks/read_rate.py [--ranks 8] [--steps 125000] [--repeats 5] [--output FILE]

The directory is made first, with lines as long as the trainer's; ``read_run`` then reads all of it, so columns, checks
and gaps are in the time. The files were just written and come from the page cache: this is our rate, not the disk's.
The rate of the line-by-line path, which names the damaged line of a damaged file, is measured on one rank.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from allpull.rundir import layout
from allpull.rundir.read.run import read_run
from allpull.schema.base import tag
from stored import keep

BASE_NS = 5_000_000_000_000
STEP_NS = 100_000_000


def make_run(folder: Path, ranks: int, steps: int) -> Path:
    """A run directory with ``ranks`` files of ``steps`` records each."""
    for name in layout.FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    run = {"schema": tag("run"), "id": "made", "name": "made", "kind": "train", "created_utc": "2026-01-01T00:00:00Z"}
    rest = {"status": "completed", "command": [], "spec": {}, "launcher": "local", "ranks": ranks, "versions": {}}
    (folder / layout.RUN_JSON).write_text(json.dumps({**run, **rest}))
    for rank in range(ranks):
        who = {"rank": rank, "host": "here", "budget": 1 << 32}
        clock = {"monotonic_ns": BASE_NS, "realtime_ns": BASE_NS}
        header = {"schema": tag("steps"), **who, "local_rank": rank, "ranks": ranks, "pid": 1, "clock": clock}
        with (folder / layout.steps_file(rank)).open("w") as file:
            file.write(json.dumps({**header, "boundary": "marks.step"}) + "\n")
            file.writelines(line(step) + "\n" for step in range(steps))
        end = {"kind": "end", "steps": steps, "t_ns": BASE_NS}
        events = [{"schema": tag("events"), **who}, end]
        (folder / layout.events_file(rank)).write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def line(step: int) -> str:
    """One record as the recorder writes it."""
    begin = BASE_NS + step * STEP_NS
    return (
        f'{{"step":{step},"epoch":{step // 1000},"begin_ns":{begin},"end_ns":{begin + STEP_NS},"samples":64,'
        f'"input_ns":1203411,"copy_ns":null,"forward_ns":30120345,"backward_ns":60123908,"optimizer_ns":5120391,'
        f'"evaluation_ns":null,"checkpoint_ns":null,"arrival_ns":{begin + 80_000_000},"done_ns":{begin + 91_000_000},'
        f'"recording_ns":8123}}'
    )


def rates(read: Callable[[], int], repeats: int) -> dict[str, float]:
    """Records per second of ``repeats`` readings."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        records = read()
        found.append(records / (time.perf_counter() - start))
    return {"median": round(statistics.median(found)), "low": round(min(found)), "high": round(max(found))}


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=125_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as sound, tempfile.TemporaryDirectory() as damaged:
        run = make_run(Path(sound), options.ranks, options.steps)
        one = make_run(Path(damaged), 1, options.steps)
        with (one / layout.steps_file(0)).open("a") as file:
            file.write("not a record\n")
        size = sum((run / layout.steps_file(rank)).stat().st_size for rank in range(options.ranks))
        records = options.ranks * options.steps
        result = {
            "records": records,
            "bytes_per_record": round(size / records, 1),
            "records_per_s": rates(lambda: read_run(run).steps.height, options.repeats),
            "records_per_s_line_by_line": rates(lambda: read_run(one, skip_damaged=True).steps.height, options.repeats),
            "repeats": options.repeats,
        }
    keep(options.output, result)


if __name__ == "__main__":
    main()
