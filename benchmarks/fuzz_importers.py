"""Feed the importers what coverage-guided mutation comes up with: nothing but a clear error may come out of them.

    python benchmarks/fuzz_importers.py [--seconds 3600] [--target NAME] [--output FILE]

Atheris (libFuzzer for Python; pip install atheris) runs each target in processes of its own, for an equal share of the
time, from seeds that are valid: traces and dumps of a small job. What must hold: only ``AllpullError`` is raised, and
every run directory that is made can be read and analysed. Each target keeps what broke it in ``build/fuzz/``. A process
lasts for ``ROUND_S`` and hands what it has found on to the next, because instrumented ones grow: the same inputs leave
a plain process as small as it was.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the made traces of the tests are the seeds

TARGETS = ("trace", "fields", "dump", "pickle")
WHOLE_EVERY = 20  # of how many inputs one goes all the way through disk and analysis
MEMORY_MIB = 2048
LONGEST_S = 25  # of computing, for one input
HANGS_S = 600  # by the clock: longer than a busy machine stretches that
ROUND_S = 120


def seeds(target: str) -> list[bytes]:
    """Valid inputs of a target."""
    made = importlib.import_module("tests.importers.made")
    recorder = importlib.import_module("tests.importers.flight_recorder.test_dump")
    job = made.Job(ranks=2, steps=2)
    if target in ("trace", "fields"):
        events = [made.gloo_events(job, 0), made.nccl_events(job, 1)]
        return [json.dumps(made.document(job, rank, of_rank)).encode() for rank, of_rank in enumerate(events)]
    dump = recorder.dump(0, steps=3)
    return [json.dumps(dump).encode()] if target == "dump" else [pickle.dumps(dump, protocol=one) for one in (2, 4)]


def checked(folder: Path) -> Callable[[bytes, str], None]:
    """What is done with an input: it is read as a file of that name; now and then it goes the whole way."""
    from allpull.analyse.aligned import AlignedRun  # noqa: PLC0415  atheris instruments what is imported after it
    from allpull.analyse.run import metrics  # noqa: PLC0415
    from allpull.errors import AllpullError  # noqa: PLC0415
    from allpull.importers.assemble import import_traces  # noqa: PLC0415
    from allpull.importers.joining import join  # noqa: PLC0415
    from allpull.importers.part import read_part  # noqa: PLC0415
    from allpull.importers.sources import find  # noqa: PLC0415
    from allpull.rundir.read.run import read_run  # noqa: PLC0415

    seen = 0

    def check(blob: bytes, name: str) -> None:
        nonlocal seen
        seen += 1
        path = folder / name
        path.write_bytes(blob)
        try:
            if seen % WHOLE_EVERY:
                join([read_part(source) for source in find([path], [])])
                return
            with tempfile.TemporaryDirectory(dir=folder) as out:
                metrics(AlignedRun(read_run(import_traces([path], out=Path(out)).directory)))
        except AllpullError:
            pass

    return check


FIELDS = ("ph", "cat", "name", "tid", "ts", "dur", "Seq", "dtype", "In msg nelems", "Group size", "correlation")


def mutated(provider: Any, document: dict[str, Any]) -> bytes:
    """A valid trace, some of whose fields hold something else."""
    events = document["traceEvents"]
    for _ in range(provider.ConsumeIntInRange(0, 12)):
        event = events[provider.ConsumeIntInRange(0, len(events) - 1)]
        holder = event if provider.ConsumeBool() else event["args"]
        name = FIELDS[provider.ConsumeIntInRange(0, len(FIELDS) - 1)]
        other = events[provider.ConsumeIntInRange(0, len(events) - 1)].get(name)
        if isinstance(holder, dict):
            holder[name] = drawn(provider, other)
    return json.dumps(document).encode()


def drawn(provider: Any, other: Any) -> Any:
    """Any value, or that of another event."""
    match provider.ConsumeIntInRange(0, 5):
        case 0:
            return provider.ConsumeInt(8)
        case 1:
            return provider.ConsumeFloat()
        case 2:
            return provider.ConsumeUnicode(20)
        case 3:
            return [provider.ConsumeInt(2)]
        case 4:
            return None
        case _:
            return other


def fuzz(target: str, corpus: Path, options: list[str]) -> None:
    """Run one target until libFuzzer ends this process; ``corpus`` holds what earlier ones found worth keeping."""
    import atheris  # noqa: PLC0415  only this child needs it

    with atheris.instrument_imports(include=["allpull.importers"]):
        importlib.import_module("allpull.importers.assemble")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    check = checked(folder)
    names = {"trace": "rank0.json", "fields": "rank0.json", "dump": "fr_rank_0.json", "pickle": "nccl_trace_rank_0"}
    valid = [json.loads(seed) for seed in seeds("fields")]

    def one_input(blob: bytes) -> None:
        if target == "fields":
            provider = atheris.FuzzedDataProvider(blob)
            document = json.loads(json.dumps(valid[provider.ConsumeIntInRange(0, len(valid) - 1)]))
            blob = mutated(provider, document)
        begun_s = time.process_time()
        check(blob, names[target])
        if time.process_time() - begun_s > LONGEST_S:
            raise TimeoutError(f"one input took more than {LONGEST_S} s of computing")

    for place, seed in enumerate(seeds(target) if target != "fields" else [bytes(range(256))]):
        (corpus / f"seed-{place}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    atheris.Fuzz()


def ran(target: str, seconds: int) -> dict[str, Any]:
    """How one target went, round after round, from libFuzzer's own words; it ends where it was broken."""
    kept = ROOT / "build" / "fuzz" / target
    corpus = kept / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "target": target,
        "seconds": 0,
        "inputs": 0,
        "covered": 0,
        "peak_memory_mib": 0,
        "broken": False,
    }
    last_words: list[str] = []
    while found["seconds"] < seconds and not found["broken"]:
        length_s = min(ROUND_S, seconds - int(found["seconds"]))
        options = [
            f"-max_total_time={length_s}",
            f"-timeout={HANGS_S}",
            f"-rss_limit_mb={MEMORY_MIB}",
            "-max_len=40000",
            "-print_final_stats=1",
            f"-artifact_prefix={kept}/",
        ]
        command = [sys.executable, __file__, "--child", target, str(corpus), *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
        stats = {name: int(value) for name, value in re.findall(r"stat::(\w+):\s+(\d+)", done.stderr)}
        covered = [int(value) for value in re.findall(r"cov: (\d+)", done.stderr)]
        found["seconds"] += length_s
        found["inputs"] += stats.get("number_of_executed_units", 0)
        found["covered"] = max([found["covered"], *covered])
        found["peak_memory_mib"] = max(found["peak_memory_mib"], stats.get("peak_rss_mb", 0))
        found["broken"] = done.returncode != 0
        last_words = done.stderr.splitlines()[-30:] if done.returncode else []
    return {**found, "last_words": last_words}


def main() -> int:
    """Run the targets; the exit code is 1 where one of them was broken."""
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600, help="of all targets together")
    parser.add_argument("--target", choices=TARGETS, help="this one alone")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    chosen = TARGETS if options.target is None else (options.target,)
    found = [ran(target, max(1, options.seconds // len(chosen))) for target in chosen]
    from stored import keep  # noqa: PLC0415  the children need nothing of it

    keep(options.output, {"targets": found, "broken": sum(one["broken"] for one in found)})
    return int(any(one["broken"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
