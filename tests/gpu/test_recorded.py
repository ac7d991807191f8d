"""Runs that were recorded on a real GPU, against what their programs measured themselves: they need no GPU."""

from __future__ import annotations

import gzip
import json
import statistics
import tarfile
from pathlib import Path

import pytest

from allpull import open_run
from allpull.analyse.idle import accelerator_idle
from allpull.rundir.read.nccl_log import parse_transports
from allpull.schema.explained import Finding

RECORDED = Path(__file__).with_name("recorded")
SETTLED = 6  # steps until convolutions are chosen and buckets rebuilt
MS = 1e6
REPLAYED_MS = 2.53  # a step of the launch-bound run's program as CUDA graphs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs."""
    folder = tmp_path_factory.mktemp("recorded")
    for archive in RECORDED.glob("*.tar.xz"):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return folder


def own(run: Path, rank: int = 0) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = json.loads((run / f"own-{rank}.json").read_text(encoding="ascii"))
    return measured


def step_ms(run: Path, rank: int = 0) -> float:
    """The mean length of a step, as the program measured it."""
    return statistics.mean(own(run, rank)["step_ms"][SETTLED - 1 :])


def usual_ms(run: Path) -> float:
    """Likewise where a few steps were profiled, and the one after them wrote the trace."""
    return statistics.median(own(run)["step_ms"])


def found(run: Path, rule: str) -> Finding:
    (finding,) = [one for one in open_run(run).explain().findings if one.rule == rule]
    return finding


@pytest.mark.parametrize("name", ["launch-bound", "slow-input", "undisturbed", "late-rank"])
def test_steps_on_the_device_last_as_long_as_the_program_measured(runs: Path, name: str) -> None:
    for rank, log in open_run(runs / name).aligned.data.events.items():
        clock = own(runs / name, rank)["step_ms"]
        known = [one for one in log.device_steps if one.step >= SETTLED]
        assert len(known) > 10
        lengths_ms = [(one.end_ns - one.begin_ns) / MS for one in known]
        measured_ms = [clock[one.step - 1] for one in known]
        assert statistics.mean(lengths_ms) == pytest.approx(statistics.mean(measured_ms), abs=0.05)


def test_a_device_that_waits_for_its_host_gains_at_least_what_replayed_graphs_gain(runs: Path) -> None:
    gain = found(runs / "launch-bound", "launch-bound").gain
    assert gain is not None
    assert usual_ms(runs / "launch-bound") / REPLAYED_MS < gain.value < 7


def test_kernels_of_a_profiled_step_are_compared_with_steps_that_were_not_profiled(runs: Path) -> None:
    run = runs / "launch-bound"
    idle = accelerator_idle(open_run(run).aligned)
    assert idle.source == "profiler windows"
    assert idle.share is not None
    (file,) = (run / "traces").glob("*.json.gz")
    device = {"kernel", "gpu_memcpy", "gpu_memset"}
    events = [one for one in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"] if one.get("cat") in device]
    busy_ms = sum(one["dur"] for one in events) / 1e3 / 3  # one stream: none overlap
    assert idle.share == pytest.approx(1 - busy_ms / usual_ms(run), abs=0.02)


def test_a_slow_loader_is_priced_by_what_is_left_of_a_step(runs: Path) -> None:
    gain = found(runs / "slow-input", "input-bound").gain
    assert gain is not None
    computed_ms = statistics.median(sum(parts) for parts in own(runs / "slow-input")["parts_ms"][SETTLED:])
    most = step_ms(runs / "slow-input") / computed_ms  # if all between the phases ended too
    assert 0.85 * most < gain.value < most
    assert gain.high is not None
    assert gain.high < 1.1 * most


def test_a_late_rank_is_named_and_priced_as_the_run_without_it_is(runs: Path) -> None:
    late = found(runs / "late-rank", "slow-rank")
    assert late.ranks == [1]
    assert "py-spy" in late.remedy
    assert "nvidia-smi" not in late.remedy  # its GPU waits
    assert late.gain is not None
    assert late.gain.value == pytest.approx(step_ms(runs / "late-rank") / step_ms(runs / "undisturbed"), rel=0.05)


def test_a_log_of_nccl_without_infiniband_names_sockets_and_no_adapter() -> None:
    (one,) = parse_transports((RECORDED / "nccl.log").read_bytes().splitlines())
    assert (one.networks, one.interfaces, one.devices) == (frozenset({"Socket"}), {0: "eth0"}, frozenset())
