"""What it costs to compare each record of a pack with its checksum when it is first read: CPU time, in turns.

    python benchmarks/checksum_cost.py [--pictures N] [--rounds N] [--output FILE]

The packs and crops are those of ``loader_peers.py``. Each round opens a pack twice and makes its first epoch with one
thread: once as it is, once with all records marked as compared. Of raw pixels the first epoch also reads whole records,
where later ones read the rows of a crop. Files are in the page cache, so that only processor time is left.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from allpull.data.loader.batches import Plan
from allpull.data.loader.pack_batches import PackBatches, Reading
from allpull.data.pack.plan import Layout, plan
from allpull.data.pack.write import write_pack
from allpull.data.sources import SOURCES, guess
from loader_paths import BATCH, LOOK, make_folder
from loader_peers import PACKS
from stored import keep


def main() -> None:
    """Measure and print or keep the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = make_folder(Path(name) / "pictures", options.pictures)
        listing = SOURCES.load(guess(folder))(folder, None)
        result = {}
        for kind, recipe in PACKS.items():
            pack = write_pack(plan(listing, recipe, Layout(seed=0)), Path(name) / kind, workers=1).directory
            result[kind] = cost(pack, options.rounds)
    keep(options.output, {"pictures": options.pictures, "rounds": options.rounds, "kinds": result})


def cost(pack: Path, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU per sample in the first epoch, medians of ``rounds``, and the share that checksums add."""
    epoch_ms(pack, compared=True)  # warms caches
    pairs = [(epoch_ms(pack, compared=False), epoch_ms(pack, compared=True)) for _ in range(rounds)]
    with_checks, without = (statistics.median(times) for times in zip(*pairs, strict=True))
    shares = sorted(100 * (one / other - 1) for one, other in pairs)
    return {
        "with_ms": round(with_checks, 4),
        "without_ms": round(without, 4),
        "added_percent": round(statistics.median(shares), 1),
        "least_percent": round(shares[0], 1),
        "most_percent": round(shares[-1], 1),
    }


def epoch_ms(pack: Path, *, compared: bool) -> float:
    """CPU time per sample of a first epoch; ``compared``: every record counts as compared already."""
    source = PackBatches(pack, Plan(global_batch=BATCH, rank=0, ranks=1, seed=0), LOOK, Reading(threads=1))
    source.pack._intact[:] = compared
    begun_s = time.process_time()
    samples = sum(batch.samples for batch in source.training(0))
    spent_s = time.process_time() - begun_s
    source.close()
    return 1e3 * spent_s / samples


if __name__ == "__main__":
    main()
