"""bf16 on a CPU that has to emulate it is remarked upon, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from allpull.kernel import Tree
from allpull.schema.spec import RunSpec, to_plain
from allpull.schema.trainspec import DataSpec, TrainSpec
from allpull.train import __main__ as rank
from allpull.train.loop import History
from allpull.train.numerics import precision as module
from allpull.train.numerics.precision import bf16_emulation, instructions

pytestmark = pytest.mark.torch

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SKYLAKE = frozenset({"avx2", "avx512f", "avx512bw", "avx512_vnni"})


@pytest.mark.parametrize(
    ("told", "slow"),
    [
        (SKYLAKE, True),
        (frozenset({"sse2", "avx2", "fma"}), True),
        (frozenset({"asimd", "asimddp", "i8mm"}), True),
        (SKYLAKE | {"avx512_bf16"}, False),
        (SKYLAKE | {"amx_bf16", "amx_tile"}, False),
        (frozenset({"asimd", "bf16"}), False),
        (frozenset(), False),  # nobody knows
    ],
)
def test_what_emulates_bf16_is_what_has_no_instructions_for_it(told: frozenset[str], slow: bool) -> None:
    said = bf16_emulation("bf16", CPU, told)
    assert bool(said) == slow
    assert not slow or "--set train.precision=fp32" in said
    assert not any(bf16_emulation(name, CPU, told) for name in ("fp32", "tf32", "fp16", "o2"))
    assert not bf16_emulation("bf16", GPU, told)


@pytest.mark.parametrize("key", ["flags", "Features"])
def test_instructions_are_those_of_linux_and_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\n{key}\t\t: one two\n\nprocessor\t: 1\n{key}\t: three\n")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"four": True, "five": False, "cores": 1}, raising=False)
    assert instructions(Tree(str(tmp_path))) == {"one", "two", "four"}
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert instructions(Tree(str(tmp_path))) == {"one", "two"}
    assert instructions(Tree(str(tmp_path / "nothing"))) == frozenset()


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_training_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[str], precision: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ALLPULL_RESUME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "instructions", lambda: SKYLAKE)
    monkeypatch.setattr(rank, "listen", lambda environ: lambda: False)
    monkeypatch.setattr(rank, "train", lambda *_: History(ended=True))
    spec = RunSpec(train=TrainSpec(precision=precision), data=DataSpec(name="digits"))
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"spec": to_plain(spec), "directory": str(tmp_path)}))
    rank.main(str(job))
    assert len(heard) == (precision == "bf16")
