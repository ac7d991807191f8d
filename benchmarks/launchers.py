"""The same training on four ranks through every launcher: what comes out, bit by bit, and how long each takes to start.

    python benchmarks/launchers.py [--launchers local,ssh,mpi,slurm,rehearse] [--output FILE]

Trains the recipe `digits` as it is, on 2 hosts of 2 ranks where a launcher has hosts. All hosts are this machine: two
OpenSSH servers that see no common folder, mpirun with a stand-in for its ssh, a Slurm with two daemons, two network
namespaces behind shaped links. Numbers come from the run directories. Needs root, and Debian's openssh-server,
openmpi-bin, slurm-wlm and iproute2. Four ranks share what CPUs there are: the rates compare nothing but launchers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from allpull.analyse.learning import last_value
from allpull.rundir import layout
from allpull.rundir.read.run import RunData, read_run
from stored import ROOT, keep

sys.path.insert(0, str(ROOT / "tests" / "launch"))

import services

RECIPE = "digits"
HOSTS = 2
RANKS = 4
LINK = "1 Gbit/s"
TIMEOUT_S = 600
STATE = ("model", "optimizer", "ranks")
"""Parts of a checkpoint that decide how a training goes on; of ranks: their batch statistics and random numbers."""

COMPARED = ("steps", "samples", "train_loss", "test_loss", "accuracy", "curves_sha256", "state_sha256")
"""What should not depend on where ranks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where ranks run: what `allpull train` is told of it, and the variables that lead there."""

    options: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def local(_: Path) -> Iterator[Place]:
    """This machine, one host."""
    yield Place(options=("--launcher", "local"))


@contextmanager
def ssh(scratch: Path) -> Iterator[Place]:
    """Two OpenSSH servers that see nothing of ``scratch``."""
    with services.ssh_hosts(hidden=scratch) as hosts:
        yield Place(options=("--launcher", f"ssh:{','.join(hosts.names)}"), environment=hosts.environment)


@contextmanager
def mpi(scratch: Path) -> Iterator[Place]:
    """OpenMPI on two hosts."""
    hosts = services.mpi_hosts(scratch)
    options = ("--launcher", f"mpi:{hosts.hostfile}", "--set", f"launch.hosts={HOSTS}")
    yield Place(options=options, environment=hosts.environment)


@contextmanager
def slurm(scratch: Path) -> Iterator[Place]:
    """A batch job of a Slurm with two hosts."""
    folder = scratch / "slurm"
    folder.mkdir()
    with services.slurm_cluster(folder) as cluster:
        options = ("--launcher", "slurm", "--set", f"launch.hosts={HOSTS}", "--set", "slurm.master=127.0.0.1")
        yield Place(options=options, environment=cluster.environment)


@contextmanager
def rehearse(scratch: Path) -> Iterator[Place]:
    """Two virtual hosts behind links of ``LINK``."""
    cluster = scratch / "cluster.toml"
    cluster.write_text(f'[cluster]\nhosts = {HOSTS}\nranks_per_host = {RANKS // HOSTS}\nlink = "{LINK}"\n')
    yield Place(options=("--launcher", f"rehearse:{cluster}"))


PLACES: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "local": local,
    "ssh": ssh,
    "mpi": mpi,
    "slurm": slurm,
    "rehearse": rehearse,
}


def train(out: Path, place: Place) -> int:
    """Train the recipe at ``place``; the run directory goes below ``out``. The exit code is 0, or we end here."""
    command = [sys.executable, "-m", "allpull", "train", RECIPE, "-n", str(RANKS), *place.options, "--out", str(out)]
    environment = {**os.environ, **place.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}{place.options[1]}: the training ended with {done.returncode}")
    return done.returncode


def row(launcher: str, exit_code: int, directory: Path) -> dict[str, Any]:
    """One line of the table, from the run directory alone."""
    answer = subprocess.run(
        [sys.executable, "-m", "allpull", "show", str(directory), "--json"], stdout=subprocess.PIPE, check=True
    )
    (shown,) = json.loads(answer.stdout)["runs"]
    run = read_run(directory)
    return {
        "launcher": launcher,
        "exit_code": exit_code,
        "status": shown["status"],
        "ranks": shown["ranks"],
        "hosts": shown["hosts"],
        "steps": run.steps["step"].n_unique(),
        "samples": int(run.steps["samples"].sum()),
        "train_loss": last_value(run.events, "train_loss"),
        "test_loss": last_value(run.events, "test_loss"),
        "accuracy": shown["accuracy"],
        "curves_sha256": digest([(one.name, one.step, one.value) for one in run.events[0].metrics]),
        "state_sha256": digest(last_state(directory)),
        "throughput": shown["throughput"],
        "step_s": shown["step_s"],
        "steady_steps": shown["steady"]["used"],
        "phases": shares(shown["phases"]),
        "startup_s": startup_s(run),
        "gaps": shown["gaps"],
    }


def shares(phases_s: Mapping[str, float | None]) -> dict[str, float | None]:
    """Each phase as a part of the step; None stays None.

    >>> shares({"forward": 0.01, "backward": 0.03, "copy": None})
    {'forward': 0.25, 'backward': 0.75, 'copy': None}
    """
    whole_s = sum(time_s for time_s in phases_s.values() if time_s is not None)
    return {name: None if time_s is None else round(time_s / whole_s, 6) for name, time_s in phases_s.items()}


def startup_s(run: RunData) -> dict[str, float]:
    """Seconds from the run's creation to when its last rank began its first step.

    `run.json` counts creation in whole seconds, cut off, so the truth lies anywhere in the second below ``high``.
    """
    created_s = int(datetime.fromisoformat(run.record.created_utc).timestamp())
    begun_s = []
    for rank, header in run.headers.items():
        first_ns = run.steps.filter(run.steps["rank"] == rank)["begin_ns"][0]
        begun_s.append((header.clock.realtime_ns + first_ns - header.clock.monotonic_ns) / 1e9 - created_s)
    high = round(max(begun_s), 3)
    return {"value": round(high - 0.5, 3), "low": round(high - 1, 3), "high": high}


def last_state(directory: Path) -> dict[str, Any]:
    """What the newest checkpoint of a run holds of ``STATE``."""
    newest = max((directory / layout.CHECKPOINTS).glob("step-*.pt"))
    stored = torch.load(newest, map_location="cpu", weights_only=True)
    return {name: stored[name] for name in STATE}


def digest(value: Any) -> str:
    """SHA-256 of nested dictionaries, sequences, tensors and plain values: the same only where all bits are.

    >>> digest({"w": torch.tensor([0.0])}) == digest({"w": torch.tensor([-0.0])})
    False
    """
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        found.update(value.contiguous().numpy().tobytes())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            found.update(f"{key!r}:".encode())
            _add(found, part)
    elif isinstance(value, list | tuple):
        found.update(f"{len(value)}[".encode())
        for part in value:
            _add(found, part)
    else:
        found.update(f"{value!r};".encode())


def agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[list[str]]]:
    """For each of ``COMPARED``, the launchers that gave the same value, bit for bit; one group where all did."""
    found: dict[str, list[list[str]]] = {}
    for name in COMPARED:
        groups: dict[Any, list[str]] = {}
        for one in rows:
            groups.setdefault(one[name], []).append(one["launcher"])
        found[name] = list(groups.values())
    return found


def measure(launchers: Sequence[str], scratch: Path) -> list[dict[str, Any]]:
    """Train through each of ``launchers`` in turn and print its line of the table."""
    print(
        f"{'launcher':9} {'hosts':>5} {'test loss':>20} {'top-1':>7} {'samples/s':>9} {'start s':>7}  state", flush=True
    )
    rows = []
    for name in launchers:
        out = scratch / "runs" / name
        try:
            with PLACES[name](scratch) as place:
                exit_code = train(out, place)
        except services.Unavailable as reason:
            sys.exit(f"{name}: {reason}")
        (directory,) = out.iterdir()
        found = row(name, exit_code, directory)
        rows.append(found)
        print(
            f"{name:9} {found['hosts']:5} {found['test_loss']:20.17f} {found['accuracy']:7.2%} "
            f"{found['throughput']['value']:9.0f} {found['startup_s']['value']:7.1f}  {found['state_sha256'][:12]}",
            flush=True,
        )
    return rows


def main() -> None:
    """Train, print the table, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launchers", default=",".join(PLACES), help="through which, in this order")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    launchers = options.launchers.split(",")
    if unknown := sorted(set(launchers) - set(PLACES)):
        parser.error(f"no launcher {', '.join(unknown)}; known: {', '.join(PLACES)}")
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(launchers, Path(scratch))
        (record,) = (Path(scratch) / "runs" / launchers[0]).glob("*/run.json")
        asked = json.loads(record.read_text("utf-8"))
    keep(
        options.output,
        {
            "recipe": RECIPE,
            "ranks": RANKS,
            "epochs": asked["spec"]["train"]["epochs"],
            "global_batch": asked["global_batch"],
            "seed": asked["seed"],
            "rehearsed_link": LINK,
            "rows": rows,
            "agreement": agreement(rows),
        },
    )


if __name__ == "__main__":
    main()
