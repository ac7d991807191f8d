"""Make the stored results again: the measurements that are too long, or too dependent on the machine, for the tests.

    python benchmarks/proof.py [--only NAME] [--list]

Each is a script of this folder that writes one file into ``results/``, with command, commit, versions and machine. They
run one after the other, because two at once would disturb each other.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One long measurement: ``name`` is that of its result, ``script`` stands in this folder."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    about: str

    @property
    def result(self) -> str:
        """Where its result is stored, from the root of the repository."""
        return f"benchmarks/results/{self.name}.json"

    @property
    def command(self) -> list[str]:
        """What makes the result, from the root of the repository, after the name of a Python."""
        return [f"benchmarks/{self.script}", *self.arguments, "--output", self.result]


MEASUREMENTS = (
    Measurement(name="demo", script="demo.py", about="what `allpull demo` prints (half a minute)"),
    Measurement(
        name="own_script",
        script="own_script.py",
        arguments=("--picture", "docs/images/report.png"),
        about="what allpull says of a script of a reader, and the picture in the README (a minute; Chromium)",
    ),
    Measurement(name="recording_cost", script="recording_cost.py", about="what recording costs a rank (seconds)"),
    Measurement(
        name="replay_speed",
        script="replay_speed.py",
        about="playing 1,024 ranks x 1,000 steps x 8 buckets again, and their efficiency tree (half a minute)",
    ),
    Measurement(
        name="checksum_cost",
        script="checksum_cost.py",
        about="what comparing each record of a pack with its checksum costs the first epoch (two minutes)",
    ),
    Measurement(name="read_rate", script="read_rate.py", about="reading 1,000,000 step records (a minute)"),
    Measurement(
        name="scale",
        script="scale.py",
        arguments=("--folder", "build/scale-runs"),
        about="CPU time and memory of show, explain, report, compare and watch up to 1,024 ranks (ten minutes)",
    ),
    Measurement(
        name="allreduce_table",
        script="allreduce_table.py",
        about="all-reduce of a shaped virtual cluster against 2(N-1)/N S/B (minutes; root)",
    ),
    Measurement(
        name="launchers",
        script="launchers.py",
        about="the same training through local, ssh, mpi, slurm and rehearse (two minutes; root)",
    ),
    Measurement(
        name="undisturbed_ranks",
        script="undisturbed_ranks.py",
        about="whether virtual accelerators that share a machine disturb each other (three minutes)",
    ),
    Measurement(
        name="overhead_inside",
        script="overhead_inside.py",
        about="what observation adds to a step, told within one process (five minutes)",
    ),
    Measurement(
        name="memory_layout",
        script="memory_layout.py",
        arguments=("--keep", "build/memory-layout.jsonl"),
        about="channels last or first in training steps on a CPU (five minutes)",
    ),
    Measurement(
        name="bf16_on_cpus",
        script="bf16_on_cpus.py",
        about="steps in bf16 beside those in fp32, by the instructions that a CPU has (two minutes)",
    ),
    Measurement(
        name="trainer_peers",
        script="trainer_peers.py",
        arguments=("--keep", "build/trainer-peers.jsonl"),
        about="the trainer beside PyTorch's example, Lightning and accelerate (half an hour; make frameworks)",
    ),
    Measurement(
        name="loader_peers",
        script="loader_peers.py",
        about="the loader per core beside torchvision's path, WebDataset, DALI and FFCV (four minutes; see the script)",
    ),
    Measurement(
        name="loader_peers_heavy",
        script="loader_peers.py",
        arguments=("--quality", "98"),
        about="the same with JPEGs that are about as heavy as ImageNet's (five minutes)",
    ),
    Measurement(
        name="scripts",
        script="scripts.py",
        about="real programs with and without `allpull run` (ten minutes; make frameworks, tools/horovod.sh)",
    ),
    Measurement(
        name="overhead",
        script="overhead.py",
        about="what observation costs, beside torch.profiler and TraceML (a quarter of an hour; build/traceml)",
    ),
    Measurement(
        name="identical_runs",
        script="identical_runs.py",
        arguments=("--runs", "22", "--slowed", "5"),
        about="false alarms of `allpull compare` on identical runs, and a planted slow-down (ten minutes)",
    ),
    Measurement(
        name="predict_published",
        script="predict_published.py",
        about="published series predicted from their smallest sizes (seconds)",
    ),
    Measurement(
        name="predict_time_to_accuracy",
        script="predict_time_to_accuracy.py",
        about="time to accuracy of MLPerf's ResNet-50 entries, from epochs of other years (seconds)",
    ),
    Measurement(
        name="kill_trials",
        script="kill_trials.py",
        arguments=("--trials", "6"),
        about="random signals to train, run, pack and study, and damaged checkpoints (20 minutes)",
    ),
    Measurement(
        name="kill_trials_100",
        script="kill_trials.py",
        arguments=("--trials", "100", "--checkpoints", "0", "--verbs", "pack,study", "--keep", "build/killed.jsonl"),
        about="a hundred random signals each to pack and study (two hours)",
    ),
    Measurement(
        name="fuzz_importers",
        script="fuzz_importers.py",
        about="the importers under coverage-guided mutation (an hour; pip install atheris)",
    ),
    Measurement(
        name="claix_like",
        script="claix_like.py",
        about="a rehearsal of what the CLAIX study met, explained (a minute; root)",
    ),
    Measurement(
        name="many_ranks",
        script="many_ranks.py",
        about="whether `allpull explain` is as right with 64, 256 and 1,024 simulated ranks (half an hour)",
    ),
    Measurement(
        name="tune_rehearsal",
        script="tune_rehearsal.py",
        arguments=("--keep", "build/tuned"),
        about="whether `allpull tune` finds the optimum of a rehearsal at a third of the cost of trying everything"
        " (half an hour; root)",
    ),
    Measurement(
        name="predict_rehearsed",
        script="predict_rehearsed.py",
        arguments=("--keep", "build/rehearsed", "--extrap", "build/extrap/bin/python"),
        about="forecasts of `allpull predict` against rehearsed clusters (twenty minutes; root, pip install extrap)",
    ),
    Measurement(
        name="real_faults",
        script="real_faults.py",
        about="whether `allpull explain` finds faults in two ranks that compute for real (ten minutes)",
    ),
    Measurement(
        name="planted_faults",
        script="planted_faults.py",
        arguments=("--keep", "build/planted"),
        about="whether `allpull explain` finds planted faults and no others (an hour, minutes the next time; root)",
    ),
    Measurement(
        name="accuracy_digits",
        script="accuracy.py",
        arguments=("--recipe", "digits", "--seeds", "5", "--keep", "build/accuracy"),
        about="accuracy on the digits, five seeds on one rank and on two (minutes; scikit-learn)",
    ),
    Measurement(
        name="accuracy_fashion_mnist",
        script="accuracy.py",
        arguments=("--recipe", "fashion-mnist", "--keep", "build/accuracy"),
        about="accuracy on Fashion-MNIST, three seeds on one rank and on two (an hour; scikit-learn)",
    ),
    Measurement(
        name="accuracy_twelve_bands",
        script="accuracy.py",
        arguments=("--recipe", "twelve-bands", "--seeds", "2", "--keep", "build/accuracy"),
        about="scores of several labels on 12 bands, two seeds on one rank and on two (half an hour; scikit-learn)",
    ),
)
"""All of them, shortest first. A new one is a script here and a line in this table."""


def main() -> int:
    """Run what was asked for; the exit code is 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[one.name for one in MEASUREMENTS], help="run this one alone")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    options = parser.parse_args()
    if options.list:
        for one in MEASUREMENTS:
            print(f"{one.name:16} {one.about}\n{'':16} python {shlex.join(one.command)}")
        return 0
    failed = [one.name for one in MEASUREMENTS if options.only in (None, one.name) and not run(one)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run(one: Measurement) -> bool:
    """Run one measurement; its result replaces the one that is stored."""
    print(f"== {one.name}: {one.about}", flush=True)
    return subprocess.run([sys.executable, *one.command], cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
