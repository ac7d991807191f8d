"""Every remedy exists where the run was started: rule by way of starting, parsed by what would parse it there."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.explain.made import STEPS, crowded, facts, found, hosts_of, job
from tests.explain.rules.test_accumulate_without_no_sync import accumulated
from tests.explain.rules.test_ddp_settings import BUFFERS, broadcast
from tests.explain.rules.test_machine_advice import counted, near
from tests.explain.rules.test_nccl import GDR, H100, SOCKETS, logged
from tests.explain.rules.test_rules import EIGHT, PLANTED, Planted
from tests.explain.rules.test_uneven_batches import USUAL, padded
from tests.replay.windows import late, only

from allpull.analyse.collectives.exchange import NoExchange
from allpull.analyse.iterable_samples import IterableSamples
from allpull.analyse.same_samples import SameSamples
from allpull.cli import app
from allpull.config.load import load_spec
from allpull.explain.candidate import Candidate
from allpull.explain.evidence.ddp_settings import DdpSettings
from allpull.explain.evidence.facts import Facts, OtherRun
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.late.stalls import COLLECTION, COMPILATION, RETRIES, Stalls
from allpull.explain.evidence.start import Start, start_of
from allpull.explain.findings import findings as find_in
from allpull.explain.remedy import Action
from allpull.explain.remedy_text import BIND_ITSELF, DIVIDED
from allpull.explain.rules import RULES, names
from allpull.jobs.command import CommandRequest, resolve
from allpull.schema.explained import RemedyLine
from allpull.schema.host import Nic
from allpull.schema.run import RunRecord

STARTS = {
    "train": Start(starter="train", launcher="local"),
    "train, pack": Start(starter="train", launcher="local", packed=True, batch=32, checkpoint_every=50),
    "train, image folder": Start(starter="train", launcher="local", folder=True),
    "train on slurm": Start(starter="train", launcher="slurm", on_slurm=True),
    "train over ssh": Start(starter="train", launcher="ssh"),
    "train by mpi": Start(starter="train", launcher="mpi", by_mpi=True),
    "run": Start(starter="run", launcher="local"),
    "run on slurm": Start(starter="run", launcher="slurm", on_slurm=True),
    "torchrun": Start(starter="torchrun"),
    "torchrun on slurm": Start(starter="torchrun", on_slurm=True),
    "srun": Start(starter="srun", on_slurm=True),
    "mpirun": Start(starter="mpirun", by_mpi=True),
    "command": Start(starter="command"),
    "rehearsal": Start(starter="rehearsal", launcher="rehearse"),
    "trace": Start(starter="trace"),
}
FULL_CPUS = dict.fromkeys(EIGHT.host_names, 1.0)
BOUND = replace(EIGHT, logical=dict.fromkeys(EIGHT.host_names, 16), bound=dict.fromkeys(range(8), frozenset({0})))
ON_CPUS = replace(EIGHT, cpus=dict.fromkeys(EIGHT.host_names, 4.0), cpu_s=np.full(8, 0.5), started=1)
MORE = (
    Planted(rule="cpu-contention", made=lambda: job(8), machine=crowded(replace(EIGHT, cpus=FULL_CPUS), range(8), 0.3)),
    Planted(
        rule="cpu-contention",
        made=lambda: job(8),
        machine=crowded(
            replace(EIGHT, cpus=dict.fromkeys(EIGHT.host_names, 4.0), other_cpu_s=dict.fromkeys(EIGHT.host_names, 3.0)),
            range(8),
            0.3,
        ),
    ),
    Planted(rule="input-bound", made=lambda: job(8, input=0.03), machine=ON_CPUS),
    Planted(
        rule="far-from-gpu",
        made=lambda: job(8),
        machine=replace(EIGHT, localities={rank: near(32 if rank in (2, 6) else 10) for rank in range(8)}),
    ),
    Planted(
        rule="cpu-contention",
        made=lambda: job(8, forward=late(8, STEPS, rank=1, by_s=0.02)),
        machine=crowded(replace(EIGHT, cpus=dict.fromkeys(EIGHT.host_names, 8.0)), (1,), 0.3),
    ),
    Planted(rule="cpu-contention", made=lambda: job(8), machine=crowded(BOUND, range(8), 0.3)),
    Planted(
        rule="slow-rank",
        made=lambda: job(8, forward=late(8, STEPS, rank=1, by_s=0.02)),
        machine=replace(EIGHT, bound={rank: frozenset(range(1 if rank == 1 else 4)) for rank in range(8)}),
    ),
)
NOT_OF_TRAINER = {"accumulate-without-no-sync", "find-unused-parameters", "no-exchange", "same-samples", "uneven-steps"}
"""Faults that our trainer cannot have: it accumulates in ``no_sync()``, wraps its networks itself, and shares out its
samples evenly.
"""
NOT_RUN = {
    "allpull compare BEFORE": "a form: `tests/cli/test_compare.py` runs it",
    "allpull ": "run with their options: `test_options_of_remedies_truly_run`, and parsed",
    "--set ": "run with all others: `test_options_of_remedies_truly_run`",
    "sync; echo 3": "empties the page cache of the machine, as root",
    "modprobe ": "loads a kernel module of NVIDIA's, as root",
    "sbatch ": "needs Slurm: parsed as a shell does",
    "srun ": "needs Slurm: parsed as a shell does",
    "torchrun --nnodes": "needs three hosts: torchrun's parser takes it",
    "torchrun --numa-binding": "needs a GPU: torchrun's parser takes it",
    "mpirun --bind-to core": "binds to cores, which a container may not show",
    "numactl --cpunodebind=1": "needs a second NUMA node",
    "nvidia-smi ": "needs a GPU",
    "cpupower ": "needs the kernel's tools, and a machine that is not virtual",
    "ethtool ": "needs a network card that says its rate",
}
"""Beginnings of lines that `test_remedies_run.py` does not run, and why."""
SLURM = re.compile(r"\b(sbatch|srun|slurm\.)")
OWN = re.compile(r"allpull (run|train|compare)((?: --?[\w-]+(?:=\S+)?| [\w:=]+)*)")
TORCHRUN = re.compile(r"torchrun((?: --[\w-]+=\w+)+)")


@pytest.fixture(scope="module")
def planted_facts(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Facts]]:
    """The facts of each planted fault, alone and against a reference run that was faster on fewer ranks."""
    other = OtherRun(run="one", ranks=1, samples_per_s=1e9, useful_s={"forward": 1e-6, "backward": 1e-6})
    made = []
    for planted in (*PLANTED, *MORE):
        first = np.isin(np.arange(STEPS), planted.first)
        alone = facts(planted.made(), planted.machine, first=first)
        made += [(planted.rule, alone), (planted.rule, replace(alone, other_runs=(other,)))]
    made.append(("computational-scaling", facts(job(8), EIGHT, other_runs=[other])))
    accumulating = facts(accumulated(tmp_path_factory.mktemp("accumulated")), Machine(hosts=hosts_of(2)))
    return [*made, ("accumulate-without-no-sync", accumulating), *_of_programs(), *_of_machines(), *_stalled()]


def _of_programs() -> Iterator[tuple[str, Facts]]:
    """Faults of what is trained."""
    settings = {"networks": [BUFFERS], "broadcasts_only_buffers": True}
    yield "broadcast-buffers", facts(job(8, calls=[broadcast(0.006)]), EIGHT, **settings)
    yield "find-unused-parameters", facts(job(8), networks=[DdpSettings(unused_bytes=0, checked_passes=11)])
    yield "uneven-batches", facts(padded(per_element_s=0.040 / USUAL), EIGHT)
    yield "uneven-steps", facts(job(8), EIGHT, reducing_steps=np.array([40] * 7 + [60]))
    same = SameSamples(groups=(tuple(range(8)),), batches=4, ranks=8, averaged=True)
    yield "same-samples", facts(job(8), EIGHT, same_samples=same)
    yield "no-exchange", facts(job(8), EIGHT, no_exchange=NoExchange(ranks=8, passes=40, steps=40))
    everywhere = only(8, STEPS, seconds=0.02, every=8, first=3)
    one_longer = everywhere + only(8, STEPS, seconds=0.05, rank=5, every=8, first=3)
    yield "uneven-evaluation", facts(job(8, evaluation=one_longer), EIGHT)


def _of_machines() -> Iterator[tuple[str, Facts]]:
    """Faults of hosts, and of the libraries there."""
    for transports in (logged(*SOCKETS, GDR[1]), logged(*SOCKETS, "NET/IB : No device found.")):
        yield "nccl-sockets", facts(job(4), H100, transports=transports)
    slow = (Nic(name="eth0", bits_per_s=10**9), Nic(name="eth1", bits_per_s=25 * 10**9))
    yield "nccl-interface", facts(job(4), H100, transports=logged(*SOCKETS, nics=slow))
    yield "nccl-no-gdr", facts(job(4), H100, transports=logged(*GDR[:2], "via NET/IB/0", "via P2P/IPC"))
    one_host = logged("via SHM/direct/direct", hosts=("node1",) * 4)
    yield "nccl-no-p2p", facts(job(4), H100, transports=one_host)
    yield "mixed-precision", facts(job(8), replace(EIGHT, gpus={"node1": ("V100",)}))
    yield "vector-build", facts(job(8), replace(EIGHT, torch_vector="DEFAULT", vector=("avx2", "avx512f")))
    yield "page-cache-only", facts(job(8), replace(EIGHT, read_bytes_per_s=1e9, storage_read_bytes_per_s=1e6))
    yield "cudnn-benchmark", facts(job(8), replace(EIGHT, input_shapes=counted((0, 20, 41, 60, 85))))
    window = job(12, samples=32.0)
    here = float(window.samples.sum()) / window.measured_s / 12
    others = [OtherRun(run="a", ranks=ranks, samples_per_s=1.1 * here) for ranks in (8, 16)]
    yield "awkward-rank-count", facts(window, Machine(hosts=hosts_of(12)), other_runs=others)


def _stalled() -> Iterator[tuple[str, Facts]]:
    """All ranks stall in some steps, by each cause and by none; and they slow down for good."""
    stalls = only(8, STEPS, seconds=0.3, every=12, first=7)
    yield "common-stall", facts(job(8, forward=stalls), EIGHT)
    for cause in (COLLECTION, COMPILATION, RETRIES):
        yield (
            "common-stall",
            facts(job(8, forward=stalls), EIGHT, stalls=Stalls(seconds={cause: stalls}, recorded=True)),
        )
    slower = np.zeros((STEPS, 8))
    slower[STEPS // 2 :] = 0.02
    yield "drift", facts(job(8, forward=slower), EIGHT)


def candidates(of: Facts, start: Start) -> list[Candidate]:
    """What all rules suspect and advise, where the run was started by ``start``."""
    started = replace(of, start=start)
    return [one for slug in names() for one in RULES.load(slug)(started)]


@pytest.fixture(scope="module")
def suspected_by_start(planted_facts: list[tuple[str, Facts]]) -> dict[str, list[tuple[str, list[Candidate]]]]:
    """By way of starting: each planted fault that it can have, with what all rules suspect."""
    return {
        name: [
            (rule, candidates(of, start))
            for rule, of in planted_facts
            if start.starter != "train" or rule not in NOT_OF_TRAINER
        ]
        for name, start in STARTS.items()
    }


@pytest.mark.parametrize("name", STARTS)
def test_a_remedy_names_what_exists_where_the_run_was_started(
    name: str, suspected_by_start: dict[str, list[tuple[str, list[Candidate]]]]
) -> None:
    start = STARTS[name]
    checked: set[str] = set()
    for rule, suspected in suspected_by_start[name]:
        assert rule in {one.rule for one in suspected}
        for one in suspected:
            if one.remedy.text in checked:
                continue
            checked.add(one.remedy.text)
            assert all(option in one.remedy.text for option in one.remedy.options), one
            _check(one.remedy, start)
            for line in one.remedy.lines:
                assert line.line in one.remedy.text
                _check_line(line, start)


def test_what_is_not_run_has_a_reason_that_is_needed(
    suspected_by_start: dict[str, list[tuple[str, list[Candidate]]]],
) -> None:
    every = {
        line.line
        for planted in suspected_by_start.values()
        for _, suspected in planted
        for one in suspected
        for line in one.remedy.lines
    }
    assert [one for one in NOT_RUN if not any(line.startswith(one) for line in every)] == []


def settings(remedy: Action) -> list[str]:
    """What follows each ``--set`` of ``remedy``."""
    return [word for one in remedy.lines if one.line.startswith("--set ") for word in one.line.split()[1::2]]


def _check(remedy: Action, start: Start) -> None:
    text, sets = remedy.text, settings(remedy)
    assert text.count("--set ") == len(sets), text
    assert "…" not in text, text
    if start.starter not in {"train", "run"}:
        assert not sets, text
    if not start.on_slurm:
        assert not SLURM.search(text), text
    if start.starter == "train":
        assert "allpull run" not in text, text
        load_spec("digits", sets)
    elif sets:
        request = CommandRequest(command=("python", "-m", "timeit"), ranks=2, launcher="local", sets=tuple(sets))
        assert resolve(request).spec
    for verb, words in OWN.findall(text):
        _parse([verb, *words.split()])
    for flags in TORCHRUN.findall(text):
        assert start.starter == "torchrun", text
        from torch.distributed.run import get_args_parser  # noqa: PLC0415  torch takes a second

        get_args_parser().parse_args([*flags.split(), "train.py"])
    if "mpirun" in text:
        assert start.starter == "mpirun" or start.by_mpi, text


def _check_line(one: RemedyLine, start: Start) -> None:
    """A line is what its place takes: Python parses it, a shell does, or it begins as what starts the ranks does."""
    if one.place == "program":
        assert start.starter != "train" or one.line.startswith("gc."), one  # a model may be the user's own
        ast.parse(f"{one.line}\n    pass" if one.line.endswith(":") else one.line)
        return
    shlex.split(one.line)
    if one.place == "environment":
        assert one.line.split()[0] in {"export", "unset"}, one
        assert not (start.by_mpi and one.line.startswith("export")), one
    if one.place == "starter":
        assert one.line.split()[0] in {"--set", "allpull", "torchrun", "srun", "sbatch", "mpirun", "numactl"}, one


@functools.cache
def _verbs() -> dict[str, Any]:
    return typer.main.get_command(app).commands  # type: ignore[attr-defined, no-any-return]


def _parse(words: list[str]) -> None:
    """Parse words of our own command line, without running them."""
    verb, *options = words
    if verb == "compare":
        options = [".", "--with", "."]
    command = _verbs()[verb]
    command.make_context(verb, [*options, "--", "train.py"] if verb == "run" else options)


@pytest.mark.parametrize("name", STARTS)
def test_findings_of_one_run_do_not_contradict_each_other(name: str) -> None:
    """A run whose loaders are behind and whose ranks wait for CPUs: not more workers here and fewer there."""
    machine = crowded(replace(ON_CPUS, cpus=FULL_CPUS, cpu_s=np.full(8, 0.3)), range(8), 0.3)
    findings = found(job(8, input=0.03), machine, start=STARTS[name]).findings
    assert {"input-bound", "cpu-contention"} <= {one.rule for one in findings}
    by_rule = {one.rule: one.remedy for one in findings}
    assert "worker" not in by_rule["cpu-contention"]


def test_every_rule_is_in_the_table(planted_facts: list[tuple[str, Facts]]) -> None:
    of_findings = {"hidden-losses"}  # it consists of others, once these are priced: ``tests/oracle``
    assert set(names()) - of_findings == {rule for rule, _ in planted_facts}


def record(command: str, **more: object) -> RunRecord:
    fields = {"schema": "allpull.run/1", "id": "a", "name": "a", "created_utc": "", "spec": {}, "versions": {}}
    fields |= {"kind": "run", "status": "completed", "launcher": "command", "ranks": 2}
    return RunRecord.model_validate({**fields, "command": command.split(), **more})


@pytest.mark.parametrize(
    ("command", "more", "expected"),
    [
        ("allpull train digits -n 2", {"kind": "train", "launcher": "local"}, ("train", False)),
        ("allpull train digits -n 2", {"kind": "train", "launcher": "slurm"}, ("train", True)),
        ("allpull run -n 2 -- train.py", {"launcher": "ssh:hosts"}, ("run", False)),
        ("allpull run -- torchrun --nproc-per-node 2 train.py", {}, ("torchrun", False)),
        ("allpull run -- python -m torch.distributed.run --nproc-per-node=2 train.py", {}, ("torchrun", False)),
        ("allpull run -- srun -n 2 python train.py", {}, ("srun", True)),
        ("allpull run -- srun -N 2 torchrun --nproc-per-node=2 train.py", {}, ("torchrun", True)),
        ("allpull run -- /opt/bin/mpirun -np 2 python train.py", {}, ("mpirun", False)),
        ("allpull run -- bash job.sh", {"environment": {"SLURM_JOB_ID": "7"}}, ("command", True)),
        ("allpull import traces", {"launcher": "import"}, ("trace", False)),
        ("allpull rehearse four.toml", {"kind": "rehearse", "launcher": "rehearse:four.toml"}, ("rehearsal", False)),
    ],
)
def test_the_record_shows_how_a_run_was_started(command: str, more: dict[str, object], expected: tuple) -> None:
    start = start_of(record(command, **more))
    assert (start.starter, start.on_slurm) == expected


def test_contention_by_other_programs_is_told_apart_from_the_jobs_own() -> None:
    machine = replace(EIGHT, cpus=dict.fromkeys(EIGHT.host_names, 4.0), cpu_s=np.full(8, 0.7))
    busy = replace(machine, other_cpu_s=dict.fromkeys(EIGHT.host_names, 2.6))
    (other,) = found(job(8), crowded(busy, range(8), 0.3)).findings
    assert "other programs keep 65 % of the CPUs" in other.title
    assert "sched_setaffinity" not in other.remedy
    (own,) = found(job(8), crowded(replace(machine, cpu_s=np.full(8, 1.9)), range(8), 0.3)).findings
    assert "other programs" not in own.title
    assert "top" not in own.remedy
    assert any("other programs keep busy" in one.what for one in other.evidence)


def test_a_single_rank_that_waits_for_a_cpu_is_named_too() -> None:
    machine = crowded(Machine(hosts=("node1",), cpus={"node1": 2.0}, other_cpu_s={"node1": 1.5}), (0,), 0.4)
    findings = found(job(1), machine).findings
    assert [one.rule for one in findings] == ["cpu-contention"]
    assert findings[0].title.startswith("The rank waits")


def test_more_workers_save_no_more_than_free_cpus_allow() -> None:
    """Two ranks on two CPUs that make their batches themselves: the work stays, whoever does it."""
    machine = Machine(hosts=("node1",) * 2, cpus={"node1": 2.0}, cpu_s=np.full(2, 0.7), started=1)
    (finding,) = (one for one in found(job(2, input=0.3), machine).findings if one.rule == "input-bound")
    assert finding.gain is not None
    assert finding.gain.is_at_most
    assert finding.gain.low == 1
    assert finding.gain.value == pytest.approx(1 / 0.7, rel=0.02)
    free = replace(machine, cpus={"node1": 64.0})
    (finding,) = (one for one in found(job(2, input=0.3), free).findings if one.rule == "input-bound")
    assert finding.gain is not None
    assert not finding.gain.is_at_most
    assert finding.gain.value > 4
    assert "num_workers=6" in finding.remedy  # 0.3 s per batch, and 62 ms of work per step


@pytest.mark.parametrize(
    ("samples", "is_told"),
    [
        pytest.param(None, False, id="another data set"),
        pytest.param(IterableSamples(workers=0, repeating=(), ranks=2), True, id="no worker yet"),
        pytest.param(IterableSamples(workers=3, repeating=(), ranks=2), False, id="workers divide"),
        pytest.param(IterableSamples(workers=3, repeating=(0, 1), ranks=2), True, id="workers repeat"),
    ],
)
def test_more_workers_of_an_iterable_data_set_have_to_divide_its_samples(
    samples: IterableSamples | None, is_told: bool
) -> None:
    free = Machine(hosts=("node1",) * 2, cpus={"node1": 64.0}, cpu_s=np.full(2, 0.7), started=1)
    findings = find_in(facts(job(2, input=0.3), free, iterable_samples=samples)).findings
    (finding,) = (one for one in findings if one.rule == "input-bound")
    assert "num_workers=6" in finding.remedy
    assert (DIVIDED in finding.remedy) is is_told


@pytest.mark.slow
def test_a_program_binds_itself_by_the_line_of_the_remedy(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"import os\n{BIND_ITSELF}\nprint('CPUs', sorted(os.sched_getaffinity(0)))\n", "ascii")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    bound = [line for line in ended.stdout.splitlines() if line.startswith("CPUs")]
    assert len(bound) == len(set(bound)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "run"])
def test_options_of_remedies_truly_run(name: str, tmp_path: Path, planted_facts: list[tuple[str, Facts]]) -> None:
    """All `--set` that remedies of such a run name, at once, on two ranks."""
    sets = {
        setting.partition("=")[0]: setting
        for _, of in planted_facts
        for one in candidates(of, STARTS[name])
        for setting in settings(one.remedy)
        if not setting.startswith(("data.", "launch.interface", "train.compile", "train.cuda_graph"))
    }
    assert "launch.bind" in sets
    options = [word for setting in sets.values() for word in ("--set", setting)]
    program = tmp_path / "program.py"
    program.write_text("print('it ran')\n", "ascii")
    what = ["train", "digits", "--set", "train.stop_after=2"] if name == "train" else ["run"]
    tail = [] if name == "train" else ["--", str(program)]
    command = [sys.executable, "-m", "allpull", *what, "-n", "2", "--out", str(tmp_path / "runs"), *options, *tail]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
