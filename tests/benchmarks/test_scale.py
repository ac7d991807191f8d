"""A large run is read within a bound that the system enforces."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MAKE = """
import sys
from pathlib import Path
from made_runs import Size, make_run
make_run(Path(sys.argv[1]), Size(ranks=128, steps=1000))
"""
ADDRESSES = 2 << 30  # bytes, of which libraries reserve some 1.2 GB before they read anything; resident are 0.3 GB


def test_show_of_128_ranks_by_1000_steps_fits_2_gib_of_addresses(tmp_path: Path) -> None:
    run = tmp_path / "run"
    subprocess.run([sys.executable, "-c", MAKE, run], cwd=BENCHMARKS, check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "allpull", "show", run],
        env={**os.environ, "POLARS_MAX_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"},  # each thread reserves some
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "128 ranks" in shown.stdout
