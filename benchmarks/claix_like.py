"""What `allpull explain` says of a rehearsal of what the CLAIX study met, beside what that study found by hand.

    python benchmarks/claix_like.py [--repeats 3] [--output FILE]

The study (A. Kozhokanova, POP assessment of a 12-band ResNet-50, aiXcelerate 2021) needed traces with Score-P, Vampir
and Cube, and an expert to read them. The rehearsal has the same kinds of fault, not the same machine: evaluation on
rank 0 alone, slow loaders, a thin network; 8 ranks on 4 virtual hosts. It needs what `allpull rehearse` needs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from fault_cases import claix
from planted_faults import run_allpull
from stored import keep

STUDY = {
    "parallel": 0.34,
    "load_balance": 0.99,
    "communication": 0.33,
    "recommended": [
        "evaluate on all ranks, or in a job of its own",
        "more workers of the loader; prepare data in advance",
        "a larger fusion buffer; hosts on one switch",
    ],
}
"""What it says of 64 GPUs. Communication efficiency is, by definition, parallel efficiency ÷ load balance."""


def explained(folder: Path) -> dict[str, Any]:
    """Rehearse once below ``folder``; the answer of `allpull explain --json`."""
    case = claix()
    folder.mkdir(parents=True)
    cluster = folder / "cluster.toml"
    cluster.write_text(case.cluster.toml(case.faults))
    run_allpull("rehearse", str(cluster), "--steps", str(case.steps), "--out", str(folder / "runs"))
    return dict(json.loads(run_allpull("explain", str(max((folder / "runs").iterdir())), "--json")))


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rehearsals of each factor, and the findings of the first of them."""
    trees = [answer["efficiency"] for answer in answers]
    factors = {name: [tree[name]["value"] for tree in trees] for name in trees[0] if trees[0][name] is not None}
    return {
        "rehearsals": len(answers),
        "same_findings": len({tuple(one["rule"] for one in answer["findings"]) for answer in answers}) == 1,
        "efficiency": {
            name: {
                "median": round(statistics.median(values), 3),
                "low": round(min(values), 3),
                "high": round(max(values), 3),
            }
            for name, values in factors.items()
        },
        "findings": [
            {
                "rule": one["rule"],
                "title": one["title"],
                "remedy": one["remedy"],
                "loss_share": one["loss_share"],
                "gain": None if one["gain"] is None else one["gain"]["value"],
            }
            for one in answers[0]["findings"]
        ],
        "study": STUDY,
    }


def main() -> None:
    """Rehearse, explain, and print or keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        answers = [explained(Path(scratch) / str(turn)) for turn in range(options.repeats)]
    keep(options.output, summary(answers))


if __name__ == "__main__":
    main()
