"""Whether `allpull explain` is as right with many ranks as with few, on simulated runs whose truth is known.

    python benchmarks/many_ranks.py [--ranks 64,256,1024] [--steps 40] [--only PREFIX] [--output FILE]

Runs come from the event-driven simulator of `tests/oracle/`, which shares no code with the replay; the truth is the
time of the same run without the fault. Some 2 s of CPU for a case of 64 ranks, a minute for one of 1,024.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from stored import keep

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the simulator is part of the tests


def main() -> int:
    """Simulate, explain and judge all cases; the exit code is 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,256,1024")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--output", type=Path, help="store the result there")
    options = parser.parse_args()
    oracle = importlib.import_module("tests.oracle.many_ranks")
    rows = [
        row(name, ranks, options.steps)
        for ranks in map(int, options.ranks.split(","))
        for name in oracle.CASES
        if name.startswith(options.only)
    ]
    keep(options.output, {"cases": len(rows), "right": sum(not one["wrong"] for one in rows), "rows": rows})
    return 1 if any(one["wrong"] for one in rows) else 0


def row(name: str, ranks: int, steps: int) -> dict[str, Any]:
    """One case: the truth, the first finding, and what is wrong about it."""
    oracle, judged = (importlib.import_module(f"tests.oracle.{module}") for module in ("many_ranks", "judged"))
    run = oracle.CASES[name](ranks, steps)
    with tempfile.TemporaryDirectory() as folder:
        answer = judged.judge(Path(folder), run.faulty, run.mended, run.recording)
    wrong = oracle.wrong(run, answer)
    first = answer.priced[0] if answer.priced else None
    print(f"{ranks:5} ranks, {name:45} {wrong or 'right':12} {answer.said()}", file=sys.stderr, flush=True)
    return {
        "case": name,
        "ranks": ranks,
        "truth": round(answer.truth, 4),
        "rule": None if first is None else first.rule,
        "gain": None if first is None else first.gain.model_dump(),
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
