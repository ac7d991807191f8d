"""The newcomer's first command, for real."""

from __future__ import annotations

import json
import re

import pytest


@pytest.mark.ranks
@pytest.mark.slow
def test_demo_trains_on_one_and_two_ranks_and_explains(run_cli, demo, request):
    done = demo(attempt=getattr(request.node, "execution_count", 1) - 1)  # where a failed test is run again
    shown = run_cli("show", "runs", "--json", cwd=done.folder)
    result = json.loads(shown.stdout)
    assert next(iter(result)) == "schema"
    assert [run["ranks"] for run in result["runs"]] == [1, 2]
    assert result["scaling"] == "weak"
    for run in result["runs"]:
        assert run["accuracy"] >= 0.97  # the promise of the demo, on 360 test digits
        assert run["closure_error"] < 0.01
        assert run["overhead"]["share"] < 0.02
        assert run["gaps"] == []
        assert run["phases"]["forward"] > 0
        assert run["throughput"]["low"] < run["throughput"]["value"] < run["throughput"]["high"]
    one, two = result["runs"]
    assert (one["phases"]["wait"], one["phases"]["transfer"]) == (0, 0)
    assert two["phases"]["transfer"] > 0
    assert two["speedup"] == pytest.approx(two["throughput"]["value"] / one["throughput"]["value"])
    assert two["efficiency"] == pytest.approx(two["speedup"] / 2)
    assert "samples/s" in done.out
    assert re.search("• 2 ranks (train|are slower|show no speed-up)", done.out), done.out  # CPUs may be shared
    assert "cannot show what a network or a GPU would do" in " ".join(done.out.split())
    page = done.folder / "runs/report.html"
    assert page.stat().st_size > 100_000
    assert str(page) in done.out


@pytest.mark.slow
@pytest.mark.ranks
def test_counters_and_hosts_are_recorded(train_digits):
    done = train_digits(2, "train.epochs=2", "observe.counter_interval_s=0.2")
    assert done.code == 0, done.err
    (counters,) = (done.directory / "counters").iterdir()
    samples = [json.loads(line) for line in counters.read_text().splitlines()[1:]]
    assert {"0", "1"} <= set(samples[-2]["ranks"])
    assert samples[-2]["ranks"]["0"]["cpu_ns"] > 1e9
    (host,) = (done.directory / "hosts").iterdir()
    assert json.loads(host.read_text())["cpu"]["logical"] >= 1
    record = json.loads((done.directory / "run.json").read_text())
    assert (record["status"], record["exit"]["code"]) == ("completed", 0)
    assert record["hosts"] == [json.loads(host.read_text())["host"]]
