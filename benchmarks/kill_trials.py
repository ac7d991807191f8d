"""Kill jobs at random, damage checkpoints at random: nothing is left behind, nothing is read as something else.

    python benchmarks/kill_trials.py [--trials N] [--verbs train,run,pack,study] [--checkpoints N] [--seed N]
        [--keep FILE] [--output FILE]

Each of the ``--trials`` of a verb (``train``, ``run``, ``pack``, ``study``) starts it, waits for a random time, three
of four trainings until their first checkpoint and then for a random time, and sends SIGKILL, SIGTERM or SIGINT to one
of its processes at random: allpull itself, the agent, a rank, the sidecar or a worker. Then must hold: all its
processes end; its private folder in the temporary directory is gone (not after SIGKILL of allpull before the agent
ran); the run can be read, or says that there is none; a training that is resumed ends with the same weights, bit for
bit; a pack that is continued has the same bytes as without the signal; and a study that is continued completes every
run once, and none that had completed again. Of a checkpoint, flipped, cut and overwritten bytes either are refused or
change nothing. What does not hold is listed with its trial. ``--keep`` keeps each trial: the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from allpull.errors import AllpullError
from allpull.observe.scratch import path_of
from allpull.rundir import layout
from allpull.rundir.read.run import read_run
from allpull.study.directory import RUNS, runs_by_point
from allpull.train.checkpoint.format import read
from allpull.train.checkpoint.safe_load import UnusableFile
from loader_paths import make_folder
from stored import Kept, keep

ALLPULL = [sys.executable, "-m", "allpull"]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
STUDY = """
[study]
name = "killed"
[run]
command = [{program}]
[axes]
ranks = [1, 2]
"""
STUDIED = 2  # runs of it
RETRIES = 3
EARLY = 0.25  # of the trainings are disturbed at any time, the others once there is a checkpoint
STEPPING_S = 3.0  # about as long as the remaining steps of ``training`` take
END_S = 120.0  # for processes whose allpull is gone, on a busy machine
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(300):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
"""


@dataclass(kw_only=True)
class Trials:
    """What was tried and what did not hold, of one verb."""

    signals: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def add(self, one: Mapping[str, Any]) -> None:
        """Add what `plain` said of others."""
        self.signals.update(one["signals"])
        self.after.update(one["after"])
        self.failed += one["failed"]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "trials": self.signals.total(),
            "signals": dict(self.signals),
            "after": dict(self.after),
            "failed": self.failed,
        }


def main() -> None:
    """Try, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="of each verb")
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--checkpoints", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="file of the trials, which the same command goes on from")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    kept = Kept(options.keep, {"seed": options.seed})
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        result: dict[str, Any] = {"seed": options.seed}
        for verb in options.verbs.split(","):
            folder = scratch / verb
            folder.mkdir()
            result[verb] = trials(options.trials, verb, folder, options.seed, kept)
        if options.checkpoints:
            _, checkpoint, _ = undisturbed_training(scratch / "whole")
            drawn = random.Random(options.seed)
            result["checkpoints"] = damaged_checkpoints(checkpoint, options.checkpoints, drawn, scratch / "damaged")
    keep(options.output, result)
    sys.exit(1 if any(part["failed"] for part in result.values() if isinstance(part, dict)) else 0)


Trial = Callable[[Path, "Trials", random.Random], None]
"""Disturb one command, in a folder of its own."""


def train_trials(folder: Path) -> Trial:
    """Of trainings."""
    weights, last, train_s = undisturbed_training(folder / "whole")
    return lambda place, done, rng: train_trial(place, done, rng, (weights, last.name, train_s))


def run_trials(_: Path) -> Trial:
    """Of an unedited program."""
    return run_trial


def pack_trials(folder: Path) -> Trial:
    """Of packs of one folder of images."""
    source = make_folder(folder / "pictures", 400)
    whole, pack_s = undisturbed_pack(source, folder / "whole")
    return lambda place, done, rng: pack_trial(place, done, rng, (source, whole, pack_s))


def study_trials(folder: Path) -> Trial:
    """Of a study of two points."""
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    file = folder / "study.toml"
    file.write_text(STUDY.format(program=json.dumps(str(folder / "program.py"))), encoding="utf-8")
    begun_s = time.monotonic()
    subprocess.run(studying(file, folder / "whole"), check=True, capture_output=True)
    study_s = time.monotonic() - begun_s
    return lambda place, done, rng: study_trial(place, done, rng, (file, study_s))


VERBS = {"train": train_trials, "run": run_trials, "pack": pack_trials, "study": study_trials}


def trials(count: int, verb: str, folder: Path, seed: int, kept: Kept) -> dict[str, Any]:
    """``count`` trials of ``verb``, each in a folder of its own, and drawn from its number alone."""
    one, done = VERBS[verb](folder), Trials()

    def tried(number: int) -> str:
        place, own = folder / str(number), Trials()
        place.mkdir()
        one(place, own, random.Random(f"{seed} {verb} {number}"))
        shutil.rmtree(place)
        return json.dumps(own.plain())

    for number in range(count):
        done.add(json.loads(kept(f"{verb} {number}", partial(tried, number))))
    return done.plain()


def training(out: Path, *more: str) -> list[str]:
    """A training of two ranks that writes a checkpoint every four steps."""
    sets = ("train.epochs=4", "train.checkpoint_every=4", "launch.grace_s=2")
    return [*ALLPULL, "train", "digits", "-n", "2", "--out", str(out), *more, *(f"--set={one}" for one in sets)]


def undisturbed_training(out: Path) -> tuple[dict[str, torch.Tensor], Path, float]:
    """Its last weights, its last checkpoint, and how long it took."""
    begun_s = time.monotonic()
    subprocess.run(training(out), check=True, capture_output=True)
    (run,) = out.glob("*_digits_*")
    last = max((run / layout.CHECKPOINTS).glob(layout.CHECKPOINT_NAMES))
    return read(last).model, last, time.monotonic() - begun_s


def disturbed(
    command: list[str], wait_s: float, done: Trials, rng: random.Random, ready: Callable[[], bool] = lambda: True
) -> tuple[str, int]:
    """Start ``command``, and ``wait_s`` after it is ``ready`` signal one of its processes.

    Returns what was done, and allpull's exit code.
    """
    number = rng.choice(SIGNALS)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not ready() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(wait_s)
        ours = psutil.Process(process.pid)
        family = [ours, *ours.children(recursive=True)] if process.poll() is None else []
        name = "nothing"
        if family:
            victim = rng.choice(family)
            name = f"{number.name} to {_kind(victim, ours)}"
            try:
                victim.send_signal(number)
            except psutil.NoSuchProcess:
                name = "nothing"
        done.signals[name] += 1
        code = process.wait()
        _, alive = psutil.wait_procs(family, timeout=END_S)
        left = [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        if left:
            done.failed.append(f"{name} after {wait_s:.1f} s: {len(left)} processes are left")
            for one in left:
                one.kill()
    return f"{name} after {wait_s:.1f} s", code


def _kind(process: psutil.Process, ours: psutil.Process) -> str:
    if process == ours:
        return "allpull"
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return "another"
    kinds = {"observe.agent": "agent", "observe.sidecar": "sidecar", "observe.rank": "rank"}
    return next((kind for part, kind in kinds.items() if part in line), "another")


def readable(out: Path, what: str, done: Trials) -> Path | None:
    """The run in ``out``, after it was read; None if there is none."""
    runs = [path.parent for path in out.glob(f"*/{layout.RUN_JSON}")]
    if not runs:
        done.after["no run yet"] += 1
        return None
    (run,) = runs
    try:
        done.after[f"run {read_run(run).record.status}"] += 1
    except AllpullError as error:
        done.failed.append(f"{what}: {error.message}")
    private = Path(path_of(str(run.resolve()), socket.gethostname()))
    if private.exists() and not what.startswith("SIGKILL to allpull"):
        done.failed.append(f"{what}: {private.name} is left in the temporary directory")
    return run


def train_trial(
    place: Path, done: Trials, rng: random.Random, whole: tuple[dict[str, torch.Tensor], str, float]
) -> None:
    """Disturb a training, resume it unless it had come to its end, and compare its weights."""
    weights, last_name, whole_s = whole
    begins = rng.random() < EARLY
    what, code = disturbed(
        training(place),
        rng.uniform(0.1, whole_s) if begins else rng.uniform(0, STEPPING_S),
        done,
        rng,
        lambda: begins or any(place.glob(f"*/{layout.CHECKPOINTS}/{layout.CHECKPOINT_NAMES}")),
    )
    run = readable(place, what, done)
    if run is None:
        return
    if code and not list((run / layout.CHECKPOINTS).glob(layout.CHECKPOINT_NAMES)):
        done.after["no checkpoint yet"] += 1
        return
    is_cut_off = code != 0 and not (run / layout.CHECKPOINTS / last_name).exists()
    if is_cut_off:
        again = subprocess.run(
            training(place / "again", "--resume", str(run)), capture_output=True, text=True, check=False
        )
        if again.returncode:
            done.failed.append(f"{what}: resumed with code {again.returncode}: {again.stderr[-300:]}")
            return
        (run,) = (place / "again").glob("*_digits_*")
    last = max((run / layout.CHECKPOINTS).glob(layout.CHECKPOINT_NAMES))
    if same(read(last).model, weights):
        done.after["resumed, the same bits" if is_cut_off else "completed, the same bits"] += 1
    else:
        done.failed.append(f"{what}: other weights")


def run_trial(place: Path, done: Trials, rng: random.Random) -> None:
    """Disturb an unedited program."""
    (place / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [
        *ALLPULL,
        "run",
        "-n",
        "2",
        "--out",
        str(place / "runs"),
        "--",
        sys.executable,
        str(place / "program.py"),
    ]
    what, _ = disturbed(command, rng.uniform(0.1, 12), done, rng)
    readable(place / "runs", what, done)


def undisturbed_pack(source: Path, target: Path) -> tuple[str, float]:
    """The digest of the pack of ``source``, and how long it took."""
    begun_s = time.monotonic()
    subprocess.run(packing(source, target), check=True, capture_output=True)
    return digest(target), time.monotonic() - begun_s


def packing(source: Path, target: Path) -> list[str]:
    """A pack of several shards, by two workers."""
    return [*ALLPULL, "pack", str(source), str(target), "--workers", "2", "--shard-size", "4MiB"]


def pack_trial(place: Path, done: Trials, rng: random.Random, whole: tuple[Path, str, float]) -> None:
    """Disturb a pack, continue it, and compare its bytes."""
    source, expected, whole_s = whole
    what, code = disturbed(packing(source, place / "pack"), rng.uniform(0.1, whole_s), done, rng)
    again = subprocess.run(packing(source, place / "pack"), capture_output=True, text=True, check=False)
    if again.returncode:
        done.failed.append(f"{what}: continued with code {again.returncode}: {again.stderr[-300:]}")
    elif digest(place / "pack") != expected:
        done.failed.append(f"{what}: other bytes")
    else:
        done.after["continued, the same bytes" if code else "completed, the same bytes"] += 1


def studying(file: Path, out: Path) -> list[str]:
    """The study of ``file`` in ``out``."""
    return [*ALLPULL, "study", "run", str(file), "--out", str(out)]


def study_trial(place: Path, done: Trials, rng: random.Random, whole: tuple[Path, float]) -> None:
    """Disturb a study, continue it until it is whole, and look at its runs."""
    file, whole_s = whole
    out = place / "study"
    what, code = disturbed(studying(file, out), rng.uniform(0.1, whole_s), done, rng)
    before = completed(out)
    for _ in range(RETRIES):  # a run whose rank was killed has failed, and is tried again
        again = subprocess.run(studying(file, out), capture_output=True, text=True, check=False)
        if again.returncode == 0:
            break
    after = completed(out)
    if again.returncode:
        done.failed.append(f"{what}: continued with code {again.returncode}: {again.stderr[-300:]}")
    elif not before <= after:
        done.failed.append(f"{what}: a completed run was lost")
    elif len(after) != STUDIED or len({point for point, _ in after}) != STUDIED:
        done.failed.append(f"{what}: {len(after)} runs completed, and the study has {STUDIED}")
    else:
        done.after[f"{'continued' if code else 'completed'}, {len(before)} runs kept"] += 1


def completed(study: Path) -> set[tuple[tuple[str, int], str]]:
    """Point and repeat, and the directory, of every run that completed."""
    if not (study / RUNS).is_dir():
        return set()
    runs = runs_by_point(study)
    return {(key, name) for key, own in runs.items() for name, record in own if record.status == "completed"}


def digest(folder: Path) -> str:
    """Of the names and bytes of all files in ``folder``."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        whole.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def damaged_checkpoints(path: Path, count: int, rng: random.Random, folder: Path) -> dict[str, Any]:
    """``count`` times a damaged copy of a checkpoint: refused, or read as it was."""
    folder.mkdir()
    content, before, done = path.read_bytes(), read(path), Trials()
    for number in range(count):
        blob, place = bytearray(content), rng.randrange(len(content))
        kind = rng.choice(("flipped", "cut", "overwritten"))
        if kind == "flipped":
            blob[place] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del blob[place:]
        else:
            size = min(rng.randrange(1, 4096), len(blob) - place)
            blob[place : place + size] = rng.randbytes(size)
        done.signals[kind] += 1
        copy = folder / path.name
        copy.write_bytes(blob)
        try:
            now = read(copy)
        except (UnusableFile, AllpullError):
            done.after["refused"] += 1
            continue
        if same(now.content(), before.content()):
            done.after["read as it was"] += 1
        else:
            done.failed.append(f"{number}: {kind} at byte {place} of {len(content)}: read as something else")
    return done.plain()


def same(left: Any, right: Any) -> bool:
    """Whether two nests of dictionaries, lists, tensors and plain values are equal bit for bit."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


if __name__ == "__main__":
    main()
