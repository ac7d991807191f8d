"""Whether `allpull explain` finds planted faults, names ranks and hosts, prices them rightly, and finds no others.

    python benchmarks/planted_faults.py [--healthy 60] [--only PREFIX] [--keep DIR] [--output FILE]

With ``--keep`` the rehearsals stay in DIR, and a second time are only explained: minutes instead of an hour.

Each case of `fault_cases.py` is rehearsed: real ranks, real DDP and Gloo, over shaped links between virtual hosts, with
faults whose size the explanation never sees. What a fault costs is measured, too, and not by us: the same cluster
without it, rehearsed in the same minute, takes less time for as many samples. (Evaluation that one rank does the most
of is compared with as much evaluation in equal shares.) The promised loss must be within 25 % of that difference or
three noise floors, the floor being how far two such rehearsals differ by themselves.

The result is a confusion matrix, planted by found. It takes an hour, on a machine with nothing else to do, and needs
what `allpull rehearse` needs.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_cases import Case, Expected, cases, healthy
from stored import commit, keep

TIMEOUT_S = 300
TOLERANCE = 0.25
FLOORS = 3.0
COMMIT = "commit"  # file with that at which a case was rehearsed, beside its run
LARGE = 0.05  # share of the step: a wrong rule above it is an error of its own kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What `allpull explain --json` said of one rehearsal, and the job's mean step over the explained window.

    ``samples`` are those of a step, over all ranks: where a shard is too large there are more of them. 1: they do not
    differ among the runs that are compared.
    """

    findings: list[dict[str, Any]]
    step_s: float
    simulation_error: float | None
    notes: list[str]
    samples: float = 1.0

    @property
    def sample_s(self) -> float:
        """Seconds a sample of the job."""
        return self.step_s / self.samples

    @property
    def priced(self) -> list[dict[str, Any]]:
        """Findings that are no advice."""
        return [one for one in self.findings if not one["advice"]]


def rehearse(case: Case, folder: Path, *, planted: bool = True) -> Heard:
    """Rehearse ``case`` below ``folder``, with its faults or without, and have it explained.

    One that was rehearsed there before, as the same cluster, is explained anew from its records.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cluster, made = folder / "cluster.toml", folder / COMMIT
    text = case.cluster.toml(case.faults) if planted else case.healthy.toml(())
    if not made.is_file() or cluster.read_text() != text:
        shutil.rmtree(folder / "runs", ignore_errors=True)
        cluster.write_text(text)
        run_allpull("rehearse", str(cluster), "--steps", str(case.steps), "--out", str(folder / "runs"))
        made.write_text(commit())
    run = max((folder / "runs").iterdir())
    said = json.loads(run_allpull("explain", str(run), "--json"))
    shown = json.loads(run_allpull("show", str(run), "--json"))["runs"][0]
    window = said["window"]
    return Heard(
        findings=said["findings"],
        step_s=window["seconds"] / max(1, window["steps"]),
        samples=shown["samples_per_rank_step"] * shown["ranks"],
        simulation_error=said["simulation_error"],
        notes=said["notes"],
    )


def run_allpull(*arguments: str) -> str:
    """What `allpull` with these arguments prints.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "allpull", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def matches(finding: dict[str, Any], expected: Expected) -> bool:
    """Whether ``finding`` is the expected one: rule, ranks and hosts."""
    if finding["rule"] not in (expected.rule, *expected.also):
        return False
    if expected.ranks is not None and tuple(finding["ranks"]) != expected.ranks:
        return False
    return expected.hosts is None or [f"node{number + 1}" for number in expected.hosts] == finding["hosts"]


def judge(case: Case, heard: Heard, base_s: float | None, floor_s: float) -> dict[str, Any]:
    """One row of the result: what was planted and found, the sizes, and what is wrong.

    ``base_s`` is what as many samples take without the fault; None where that was not measured.
    """
    wrong: list[str] = []
    taken: list[dict[str, Any]] = []
    for expected in case.expected:
        found = next((one for one in heard.priced if matches(one, expected)), None)
        if found is None:
            wrong.append(f"missed {expected.rule}")
        else:
            taken.append(found)
    others = [one for one in heard.priced if one not in taken]
    wrong += [f"false {one['rule']}" for one in others if not case.expected]
    wrong += [f"wrong {one['rule']}" for one in others if case.expected and one["loss_share"] > LARGE]
    promised_s = sum(one["loss_s_per_step"] for one in taken)
    cost_s = None if base_s is None else heard.step_s - base_s
    is_single = len(case.expected) == 1 and bool(taken)
    if is_single and cost_s is not None and abs(promised_s - cost_s) > max(TOLERANCE * cost_s, FLOORS * floor_s):
        wrong.append("size")
    gains = [one["gain"]["value"] for one in heard.priced]
    if gains != sorted(gains, reverse=True):
        wrong.append("order")
    return {
        "case": case.name,
        "planted": [one.rule for one in case.expected],
        "found": [
            {name: one[name] for name in ("rule", "ranks", "hosts", "loss_s_per_step", "loss_share")}
            for one in heard.priced
        ],
        "step_s": round(heard.step_s, 6),
        "cost_s": None if cost_s is None else round(cost_s, 6),
        "promised_s": round(promised_s, 6) if taken else None,
        "simulation_error": heard.simulation_error,
        "wrong": wrong,
    }


def confusion(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Planted → found → how often; single faults and healthy runs only, and of several findings the first."""
    table: dict[str, Counter[str]] = {}
    for row in rows:
        if len(row["planted"]) <= 1:
            planted = row["planted"][0] if row["planted"] else "healthy"
            found = row["found"][0]["rule"] if row["found"] else "nothing"
            table.setdefault(planted, Counter())[found] += 1
    return {planted: dict(found) for planted, found in sorted(table.items())}


def main() -> int:
    """Rehearse all, and say what came out; the exit code is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=60, help="healthy rehearsals")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument(
        "--keep", type=Path, help="folder for the run directories; those already there are only explained"
    )
    parser.add_argument("--output", type=Path, help="store the result there")
    options = parser.parse_args()
    chosen = [case for case in (*cases(), *healthy(options.healthy)) if case.name.startswith(options.only)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        rows = measure(chosen, folder)
        made_at = Counter(
            (folder / row["case"] / COMMIT).read_text() for row in rows if row["found"] or not row["wrong"]
        )
    broken = [row for row in rows if row["wrong"]]
    clean = [row for row in rows if not row["planted"]]
    keep(
        options.output,
        {
            "cases": len(rows),
            "right": len(rows) - len(broken),
            "healthy": len(clean),
            "false_alarms": sum(1 for row in clean if row["wrong"]),
            "rehearsed_at": dict(made_at),
            "confusion": confusion(rows),
            "rows": rows,
        },
    )
    for row in broken:
        print(f"{row['case']}: {', '.join(row['wrong'])}", file=sys.stderr)
    return 1 if broken else 0


def measure(chosen: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """A row for each case; clusters without their faults are rehearsed twice, for what two such runs differ by."""
    bases: dict[Any, list[float]] = {}
    rows = []
    for case in chosen:
        place = folder / case.name
        if case.faults and case.healthy not in bases:
            without = [rehearse(case, folder / f"{case.name}-without-{turn}", planted=False) for turn in (1, 2)]
            bases[case.healthy] = [one.sample_s for one in without]
        try:
            heard = rehearse(case, place)
        except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
            rows.append(_failed(case, error))
        else:
            times = [sample_s * heard.samples for sample_s in bases.get(case.healthy, [])]
            base_s = statistics.mean(times) if case.faults and times else None
            floor_s = abs(times[0] - times[1]) / math.sqrt(2) if len(times) == 2 else 0.0
            rows.append(judge(case, heard, base_s, max(floor_s, 0.005 * heard.step_s)))
        row = rows[-1]
        said = ", ".join(f"{one['rule']} {one['ranks'] or one['hosts']}" for one in row["found"]) or "nothing"
        verdict = ", ".join(row["wrong"]) or "right"
        print(f"{case.name:28} {verdict:20} {said}", file=sys.stderr, flush=True)
    return rows


def _failed(case: Case, error: Exception) -> dict[str, Any]:
    return {
        "case": case.name,
        "planted": [one.rule for one in case.expected],
        "found": [],
        "step_s": None,
        "cost_s": None,
        "promised_s": None,
        "simulation_error": None,
        "wrong": [f"failed: {str(error)[:300]}"],
    }


if __name__ == "__main__":
    sys.exit(main())
