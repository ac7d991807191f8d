"""The accuracy that the shipped recipe reaches on Fashion-MNIST, on two ranks.

    python benchmarks/fashion_mnist.py [--ranks 2] [--output FILE]

Trains the recipe `fashion-mnist` as it is, by the command line, and keeps what `allpull show --json` says of the run.
The data must be here: Debian's package dataset-fashion-mnist, or a folder given with --data. The wall time is context
only: it is that of this machine on that day.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stored import keep

RECIPE = "fashion-mnist"


def train(out: Path, ranks: int, data: Path | None) -> None:
    """Train the recipe on ``ranks`` ranks; its run directory goes below ``out``.

    Raises:
        subprocess.CalledProcessError: the training failed.
    """
    options = ["--set", f"data.path={data.resolve()}"] if data is not None else []
    command = [sys.executable, "-m", "allpull", "train", RECIPE, "-n", str(ranks), "--out", str(out), *options]
    subprocess.run(command, check=True)


def shown(out: Path) -> dict[str, Any]:
    """What `allpull show --json` says of the one run below ``out``."""
    command = [sys.executable, "-m", "allpull", "show", str(out), "--json"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    (run,) = json.loads(answer.stdout)["runs"]
    return dict(run)


def main() -> None:
    """Train, and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        start = time.perf_counter()
        train(out, options.ranks, options.data)
        wall_s = time.perf_counter() - start
        run = shown(out)
        (record,) = (json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*/run.json"))
    keep(
        options.output,
        {
            "recipe": RECIPE,
            "ranks": run["ranks"],
            "epochs": record["spec"]["train"]["epochs"],
            "global_batch": run["global_batch"],
            "seed": record["seed"],
            "accuracy": run["accuracy"],
            "accuracy_top5": run["accuracy_top5"],
            "throughput": run["throughput"],
            "wall_s": round(wall_s, 1),
        },
    )


if __name__ == "__main__":
    main()
