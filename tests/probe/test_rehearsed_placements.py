"""The same ranks under one switch and under two, on a rehearsed cluster: its uplinks are what the comparison shows."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

CLUSTER = '[cluster]\nhosts = 4\nranks_per_host = 1\nlink = "2 Gbit/s"\nshrink = 4\n'
ONE = '[[switch]]\nhosts = [0, 1, 2, 3]\nuplink = "500 Mbit/s"\n'
TWO = '[[switch]]\nhosts = [0, 1]\nuplink = "500 Mbit/s"\n[[switch]]\nhosts = [2, 3]\nuplink = "500 Mbit/s"\n'


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.root
@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2")
def test_uplinks_of_a_quarter_of_the_links_make_it_four_times_as_slow(run_cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A ring crosses each uplink once each way, so its slowest hop has a quarter of the rate."""
    for name, switches in (("one", ONE), ("two", TWO)):
        (tmp_path / f"{name}.toml").write_text(CLUSTER + switches, "utf-8")
        where = ("--launcher", f"rehearse:{name}.toml", "--out", name)
        done = run_cli("probe", "allreduce", *where, "--sizes", "1MiB", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    sides = [str(next((tmp_path / name).iterdir())) for name in ("one", "two")]
    done = run_cli("compare", sides[0], "--with", sides[1], "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (size,) = result["sizes"]
    assert result["decision"] == size["decision"] == "slower"
    assert 2.0 < size["ratio"]["value"] < 4.6  # 4.1 on a quiet machine; a busy one slows the faster side more
    assert size["ratio"]["low"] > 1.5
