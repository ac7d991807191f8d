"""Whether `allpull explain` finds faults where ranks compute for real: 2 of them, a small ResNet, handwritten digits.

    python benchmarks/real_faults.py [--healthy 30] [--only PREFIX] [--keep FOLDER] [--output FILE]

The program is `faulty_program.py`, which is observed unedited. What a fault costs is measured without our records, by
the wall time of the same program without it (`planted_faults.py` says how findings are judged). Each rank has a core
of its own; for `contended` a busy loop is put beside rank 1, at three priorities. With two cores the rest of the
machine disturbs, so the noise floor is wider than that of rehearsals. Ten minutes, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_cases import Case, Cluster, Expected
from planted_faults import Heard, confusion, judge, run_allpull
from stored import ROOT, keep

PROGRAM = ROOT / "benchmarks" / "faulty_program.py"
NOBODY = Cluster(hosts=1, ranks_per_host=2)  # there is no cluster here; a case wants one
ATTEMPTS = 5
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """One run: options of the program, and by how much nicer a busy loop is that shares the core of rank 1, if any."""

    name: str
    options: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()
    contended: int | None = None


def cases(healthy: int) -> Iterator[Real]:
    """All of them: healthy ones in between, so that what changes on the machine meets both."""
    slow, loader = Expected(rule="slow-rank", ranks=(1,)), Expected(rule="slow-loader-rank", ranks=(1,))
    planted = [
        Real(
            name=f"slow-{where}-{ms}ms", options=_late(where, 1, ms), expected=(loader if where == "loader" else slow,)
        )
        for ms in (10, 25, 60)
        for where in ("forward", "backward", "loader")
    ]
    starved = (Expected(rule="input-bound"),)
    planted += [
        Real(name=f"slow-loaders-{ms}ms", options=_late("loader", -1, ms), expected=starved) for ms in (10, 25, 60)
    ]
    alone = Expected(rule="sequential-evaluation", ranks=(0,))
    planted += [
        Real(name=f"alone-{ms}ms", options=("--evaluate-ms", str(ms)), expected=(alone,)) for ms in (100, 300, 900)
    ]
    planted.append(
        Real(name="late+alone", options=(*_late("forward", 1, 40), "--evaluate-ms", "200"), expected=(slow, alone))
    )
    planted += [
        Real(name=f"busy-{where}-{ms}ms", options=(*_late(where, 1, ms), "--busy"), expected=(slow,))
        for where, ms in (("forward", 5), ("backward", 10), ("forward", 25))
    ]
    crowded = (Expected(rule="cpu-contention", ranks=(1,)),)
    planted += [Real(name=f"contended-nice-{nice}", expected=crowded, contended=nice) for nice in (0, 3, 6)]
    made = 0
    for number, case in enumerate(planted, start=1):
        while made * len(planted) < number * healthy:
            yield Real(name=f"healthy-{made:02d}")
            made += 1
        yield case


def _late(where: str, rank: int, ms: int) -> tuple[str, ...]:
    return ("--late-in", where, "--rank", str(rank), "--delay-ms", str(ms))


def run(case: Real, folder: Path) -> Heard:
    """Run ``case`` below ``folder`` with each rank bound to a core, and have it explained."""
    rival = ["taskset", "-c", "1", "nice", "-n", str(case.contended), sys.executable, "-c", BUSY]
    beside = None if case.contended is None else subprocess.Popen(rival)
    command = ("run", "-n", "2", "--set", "launch.bind=cores", "--out", str(folder), "--", str(PROGRAM), *case.options)
    try:
        _unless_gloo_aborts(command)
    finally:
        if beside is not None:
            beside.kill()
            beside.wait()
    said = json.loads(run_allpull("explain", str(max(folder.iterdir())), "--json"))
    window = said["window"]
    return Heard(
        findings=[
            {**one, "hosts": []} for one in said["findings"]
        ],  # all are this machine, whose name is nobody's business
        step_s=window["seconds"] / max(1, window["steps"]),
        simulation_error=said["simulation_error"],
        notes=said["notes"],
    )


def _unless_gloo_aborts(command: tuple[str, ...]) -> None:
    """Run ``command``, again where a thread of Gloo's ended a program that was done, as it does unobserved, too.

    It frees tensors while the interpreter goes down (pytorch/pytorch pull request 179291).
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            run_allpull(*command)
        except RuntimeError as error:
            if not left or "terminate called without an active exception" not in str(error):
                raise
        else:
            return


def main() -> int:
    """Run all, and say what came out; the exit code is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=30)
    parser.add_argument("--only", default="", help="cases whose name begins so; healthy ones always run, for the cost")
    parser.add_argument("--keep", type=Path, help="folder to keep the runs in")
    parser.add_argument("--output", type=Path, help="store the result there")
    options = parser.parse_args()
    heard: list[tuple[Real, Heard]] = []
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as scratch:
        for case in cases(options.healthy):
            if case.name.startswith((options.only, "healthy")):
                heard.append((case, run(case, Path(scratch) / case.name)))
                found = ", ".join(f"{one['rule']} {one['ranks']}" for one in heard[-1][1].priced) or "nothing"
                print(f"{case.name:24} {heard[-1][1].step_s * 1000:8.2f} ms  {found}", file=sys.stderr, flush=True)
    steps_s = [one.step_s for case, one in heard if not case.expected]
    floor_s = statistics.stdev(steps_s) * math.sqrt(1 + 1 / len(steps_s)) if len(steps_s) > 1 else 0.0
    rows = [_row(case, one, statistics.mean(steps_s), floor_s) for case, one in heard]
    broken = [row for row in rows if row["wrong"]]
    keep(
        options.output,
        {
            "cases": len(rows),
            "right": len(rows) - len(broken),
            "healthy": len(steps_s),
            "false_alarms": sum(1 for row in broken if not row["planted"]),
            "healthy_step_s": {"mean": statistics.mean(steps_s), "floor": floor_s},
            "confusion": confusion(rows),
            "rows": rows,
        },
    )
    for row in broken:
        print(f"{row['case']}: {', '.join(row['wrong'])}", file=sys.stderr)
    return 1 if broken else 0


def _row(case: Real, heard: Heard, base_s: float, floor_s: float) -> dict[str, Any]:
    judged = Case(name=case.name, cluster=NOBODY, expected=case.expected)
    return judge(judged, heard, base_s if case.expected else None, max(floor_s, 0.005 * heard.step_s))


if __name__ == "__main__":
    sys.exit(main())
