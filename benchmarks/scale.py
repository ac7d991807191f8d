"""What reading and explaining runs of many ranks costs, as ratios to one parse of the same step files by polars.

    python benchmarks/scale.py --output benchmarks/results/scale.json
    python benchmarks/scale.py [--sizes 8x1000,64x1000,512x1000] [--verbs show,explain] [--traces 2000] [--folder DIR]

Every number is the CPU time (user and system, all threads) and the peak memory of a fresh process, start and imports
included, on the parse's side too; Python's bytecode is there, as after an installation. The parse gives polars the
names and types of the columns of the step files, and keeps the columns; it checks nothing and reads no other file.
`compare` reads a second run of equal size, and its ratio is to `show` of both. Runs are made in --folder, and kept
there if it is given; `derived/` is deleted before each verb but `show again`. Files were just written or read: they
come from the page cache. Beside it: `--help` and the verbs on a small run, the least of several processes; and traces
of torch.profiler of --traces ranks, imported, shown and explained.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import allpull
from allpull.rundir import layout
from made_runs import Size, make_run
from stored import keep

SIZES = "8x1000,64x1000,512x1000,1024x1000,64x50000"
SMALL, REPEATS = Size(ranks=2, steps=200), 5
TRACED_RANKS, TRACES_PER_HOST = 2000, 8
VERBS = ("show", "show again", "explain", "report", "compare", "perfetto", "watch")
LIMIT_S = 1800
FAILED_GATE = 3  # exit code of a command that did what it was asked

PARSE = """
import sys
from pathlib import Path
import polars as pl
integers = dict.fromkeys(sys.argv[2].split(","), pl.Int64())
calls = pl.List(pl.List(pl.Int64))
lists = {"tags": pl.List(pl.String), "collectives": calls, "ready_ns": pl.List(pl.Int64), "reductions": calls}
pl.read_ndjson(sorted(Path(sys.argv[1]).glob("*.jsonl")), schema={**integers, **lists})
"""
INTEGERS = (
    "step,epoch,begin_ns,end_ns,samples,input_ns,copy_ns,forward_ns,backward_ns,optimizer_ns,evaluation_ns,"
    "checkpoint_ns,arrival_ns,done_ns,recording_ns,queued_ns,collective_ns,backward_passes"
)


def cost(command: list[str]) -> dict[str, float]:
    """CPU seconds and peak memory of ``command``, which has to succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, FAILED_GATE):
            output.seek(0)
            sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{output.read().decode(errors='replace')}")
    return {"cpu_s": round(usage.ru_utime + usage.ru_stime, 2), "peak_mb": round(usage.ru_maxrss / 1000)}


def commands(run: Path, other: Path, scratch: Path) -> Mapping[str, list[str]]:
    """The command of each verb."""
    allpull = [sys.executable, "-m", "allpull"]
    page, timeline = str(scratch / "report.html"), str(scratch / "timeline.json.gz")
    return {
        "show": [*allpull, "show", str(run)],
        "show again": [*allpull, "show", str(run)],
        "explain": [*allpull, "explain", str(run)],
        "report": [*allpull, "report", str(run), "-o", page],
        "compare": [*allpull, "compare", str(run), "--with", str(other)],
        "perfetto": [*allpull, "show", str(run), "--perfetto", timeline],
        "watch": [*allpull, "watch", str(run), "--once"],
    }


def measured(size: Size, verbs: list[str], folder: Path) -> dict[str, Any]:
    """The costs of ``verbs`` for runs of ``size``, which are made unless they exist."""
    runs = [folder / f"{size.ranks}x{size.steps}_{number}" for number in range(1 + ("compare" in verbs))]
    for seed, run in enumerate(runs):
        if not (run / layout.RUN_JSON).exists():
            make_run(run, size, seed)
    parse = cost([sys.executable, "-c", PARSE, str(runs[0] / layout.STEPS), INTEGERS])
    costs = {"parse": parse}
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    for verb, command in commands(runs[0], runs[-1], scratch).items():
        if verb in verbs:
            if verb != "show again":
                for run in runs:
                    shutil.rmtree(run / layout.DERIVED, ignore_errors=True)
            costs[verb] = cost(command)
            sys.stderr.write(f"{size.ranks} x {size.steps}: {verb} {costs[verb]}\n")
    for verb, one in costs.items():
        one["ratio"] = round(one["cpu_s"] / parse["cpu_s"], 2)
        if verb == "compare" and "show" in costs:
            one["ratio_to_show_of_both"] = round(one["cpu_s"] / (2 * costs["show"]["cpu_s"]), 2)
    outputs = {path.name: path.stat().st_size for path in scratch.iterdir()}
    shutil.rmtree(scratch)
    files = [path for path in runs[0].rglob("*") if path.is_file() and layout.DERIVED not in path.parts]
    return {
        "ranks": size.ranks,
        "steps": size.steps,
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "output_bytes": outputs,
        "costs": costs,
    }


def small_run(folder: Path) -> dict[str, Any]:
    """The least costs of `--help`, and of the verbs on a run of ``SMALL``: what start and drawing take."""
    run = make_run(folder / "small", SMALL)
    verbs = {"help": [sys.executable, "-m", "allpull", "--help"], **commands(run, run, folder)}
    costs = {
        verb: min((cost(verbs[verb]) for _ in range(REPEATS)), key=lambda one: one["cpu_s"])
        for verb in ("help", "show", "explain", "report")
    }
    return {"ranks": SMALL.ranks, "steps": SMALL.steps, "costs": costs}


def imported_traces(ranks: int, folder: Path) -> dict[str, Any]:
    """The costs of importing torch.profiler's traces of ``ranks`` ranks, four steps each, and of reading the run."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the writer of traces is part of the tests
    made = importlib.import_module("tests.importers.made")
    host = made.Job(ranks=TRACES_PER_HOST)
    job = made.Job(ranks=ranks, hosts=[f"node{number:04d}" for number in range(-(-ranks // TRACES_PER_HOST))])
    events = [made.gloo_events(host, rank) for rank in range(host.ranks)]  # every host's are alike
    traces = folder / "traces"
    traces.mkdir()
    for rank in range(ranks):
        made.save(traces / f"rank-{rank}.json.gz", made.document(job, rank, events[rank % host.ranks]))
    allpull_command = [sys.executable, "-m", "allpull"]
    costs = {"import": cost([*allpull_command, "import", str(traces), "--out", str(folder / "imported")])}
    (run,) = (folder / "imported").iterdir()
    costs |= {verb: cost([*allpull_command, verb, str(run)]) for verb in ("show", "explain")}
    return {"ranks": ranks, "steps": job.steps, "costs": costs}


def exponents(results: list[dict[str, Any]]) -> dict[str, float]:
    """For each verb, the slope of log CPU time over log records, from the two largest runs: 1 is proportional."""
    if len(results) < 2:
        return {}
    small, large = sorted(results, key=lambda one: one["ranks"] * one["steps"])[-2:]
    growth = math.log(large["ranks"] * large["steps"] / (small["ranks"] * small["steps"]))
    pairs = ((verb, one["cpu_s"], small["costs"].get(verb)) for verb, one in large["costs"].items())
    return {verb: round(math.log(cpu_s / less["cpu_s"]) / growth, 2) for verb, cpu_s, less in pairs if less and growth}


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=SIZES, help="ranks x steps, such as 8x1000,64x1000")
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--traces", type=int, default=TRACED_RANKS, help="ranks whose traces are imported; 0: none")
    parser.add_argument("--folder", type=Path, help="where the runs are, or are made and kept")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = [
        Size(ranks=int(ranks), steps=int(steps))
        for ranks, steps in (one.split("x") for one in options.sizes.split(","))
    ]
    compileall.compile_dir(Path(allpull.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as temporary:
        folder, scratch = options.folder or Path(temporary), Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result: dict[str, Any] = {"small": small_run(scratch)}
        result["sizes"] = [measured(size, options.verbs.split(","), folder) for size in sizes]
        if options.traces:
            result["traces"] = imported_traces(options.traces, scratch)
    keep(options.output, {**result, "exponents": exponents(result["sizes"])})


if __name__ == "__main__":
    main()
