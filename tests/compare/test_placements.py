"""Two placements of the same ranks: known ratios, switches by Slurm's names, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from allpull.compare.placements import Probed, compare_placements, leaf_switch
from allpull.errors import BadInput
from allpull.observe.host import describe_host
from allpull.report.terminal.probe import placements_table
from allpull.rundir.run_record import read_record
from allpull.schema.host import Cpu, HostRecord
from allpull.schema.probes import AllreduceAnswer, Repetitions

RUNS = Path(__file__).resolve().parents[1] / "runs"
SIZES = {1 << 20: 0.010, 8 << 20: 0.060}


def host(name: str, topology: str | None) -> HostRecord:
    return HostRecord(
        schema="allpull.host/1.6", host=name, os="", kernel="", cpu=Cpu(architecture="x86_64"), fingerprint="0",
        topology=topology,
    )  # fmt: skip


def probe(factor: float, seed: int, *, topologies: Sequence[str | None], ranks: int = 4, sizes=SIZES) -> Probed:  # type: ignore[no-untyped-def]
    """A probe on hosts with these topologies, ``factor`` times as slow as ``sizes``, with noise of 2 %."""
    rng = np.random.default_rng(seed)
    results = [
        Repetitions(size_bytes=size, times_s=(time_s * factor * np.exp(0.02 * rng.standard_normal(30))).tolist())
        for size, time_s in sizes.items()
    ]
    hosts = [host(f"node{seed}{number}", topology) for number, topology in enumerate(topologies)]
    answer = AllreduceAnswer(schema="allpull.allreduce/1.0", ranks=ranks, backend="gloo", device="cpu", results=results)
    return Probed(record=read_record(RUNS / "v1.4"), hosts=hosts, answer=answer)


ONE = ["s0.s1.node1", "s0.s1.node2"]
TWO = ["s0.s1.node1", "s0.s2.node3"]


def test_one_switch_against_two() -> None:
    result = compare_placements([probe(1.0, 1, topologies=ONE)], [probe(1.5, 2, topologies=TWO)])
    assert [one.size_bytes for one in result.sizes] == list(SIZES)
    for one in result.sizes:
        assert one.ratio.includes(1.5)
        assert one.ratio.low is not None
        assert one.ratio.low > 1.4
        assert (one.decision, one.basis) == ("slower", "unknown")
    assert result.decision == "slower"
    assert result.before[0].switches == ["s1", "s1"]
    assert result.after[0].switches == ["s1", "s2"]
    assert "from probe to probe" in result.notes[0]
    table = placements_table(result)
    assert "leaf switch s1" in table
    assert "leaf switches s1, s2" in table
    assert "slower" in table


def test_no_difference_is_none() -> None:
    result = compare_placements([probe(1.0, 1, topologies=ONE)], [probe(1.0, 2, topologies=ONE)])
    assert {one.decision for one in result.sizes} == {"no difference shown"}


def test_three_probes_of_each_show_what_varies_between_them() -> None:
    """Probes of one placement differ by 10 %, which no number of repetitions in one of them shows."""
    before = [probe(factor, seed, topologies=ONE) for seed, factor in enumerate((1.0, 1.1, 0.9))]
    after = [probe(factor, 9 + seed, topologies=TWO) for seed, factor in enumerate((1.08, 0.95, 1.1))]
    result = compare_placements(before, after)
    assert {one.basis for one in result.sizes} == {"both sides"}
    assert {one.decision for one in result.sizes} == {"no difference shown"}
    assert not any("from probe to probe" in note for note in result.notes)


def test_hosts_without_a_topology_have_no_switch() -> None:
    result = compare_placements([probe(1.0, 1, topologies=[None, "s0.s1.b"])], [probe(1.0, 2, topologies=[None, None])])
    assert result.before[0].switches is None
    assert leaf_switch(host("a", "a")) is None
    assert leaf_switch(host("a", "s4.a")) == "s4"


def test_what_does_not_compare_is_refused() -> None:
    four = probe(1.0, 1, topologies=ONE)
    with pytest.raises(BadInput, match="differ in ranks: 4, 8"):
        compare_placements([four], [probe(1.0, 2, topologies=ONE, ranks=8)])
    with pytest.raises(BadInput, match="no size in common"):
        compare_placements([four], [probe(1.0, 2, topologies=ONE, sizes={64: 0.001})])


def test_a_host_records_what_slurm_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "core.leaf3.node17")
    assert describe_host(str(tmp_path))["topology"] == "core.leaf3.node17"
    monkeypatch.delenv("SLURM_TOPOLOGY_ADDR")
    assert describe_host(str(tmp_path))["topology"] is None


def test_runs_and_probes_do_not_mix(run_here, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    probe_run = tmp_path / "probe"
    probe_run.mkdir()
    record = json.loads((RUNS / "v1.4/run.json").read_text("utf-8"))
    (probe_run / "run.json").write_text(json.dumps({**record, "kind": "probe", "id": "made_probe"}), "utf-8")
    done = run_here("compare", str(probe_run), "--with", str(RUNS / "v1.4"))
    assert done.returncode == 2
    assert "is no probe, and others are" in done.stderr
