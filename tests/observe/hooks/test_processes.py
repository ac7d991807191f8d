"""Which process is a rank, what reaches it, and that nothing of the program's own is lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.observe.hooks.conftest import LOOP, TRAINING, Watch, torchrun

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_nothing_of_ours_is_on_the_programs_path(watched: Watch) -> None:
    run = watched(
        """
import sys, torch
assert not [entry for entry in sys.path if "hook" in entry], sys.path
assert "allpull" not in sys.modules
assert type(torch.__spec__.loader).__name__ == "SourceFileLoader", torch.__spec__.loader
"""
    )
    assert (run.code, run.err) == (0, "")
    assert run.ranks == []
    assert [told["reason"] for told in run.processes()] == ["it imported torch and did not train"]


def test_the_users_own_sitecustomize_runs(watched: Watch, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    run = watched(TRAINING + LOOP + "import sys; print(sys.theirs)", PYTHONPATH=str(tmp_path / "own"))
    assert run.out.strip() == str(tmp_path / "own" / "sitecustomize.py")
    assert len(run.steps()) == 10


def test_a_second_process_of_the_same_rank_is_left_out_and_named(watched: Watch) -> None:
    again = (
        "import subprocess, sys\nif not sys.argv[1:]: subprocess.run([sys.executable, __file__, 'again'], check=True)"
    )
    run = watched(TRAINING + LOOP + again)
    assert run.code == 0
    assert len(run.steps()) == 10
    assert "is not recorded: rank 0 is already another process" in run.err


@pytest.mark.parametrize(
    ("ending", "code", "kinds"),
    [
        ("raise ValueError('lost')", 1, ["exception"]),
        ("import sys; sys.exit(3)", 3, ["end"]),
        ("import os; os.kill(os.getpid(), 9)", -9, []),
        ("import os; os.fork() or os._exit(0)", 0, ["end"]),
        (
            "import threading, os; threading.Timer(0.3, os.kill, (os.getpid(), 15)).start(); threading.Event().wait()",
            -15,
            [],
        ),
    ],
)
def test_every_ending_keeps_its_code_and_a_readable_record(
    watched: Watch, ending: str, code: int, kinds: list[str]
) -> None:
    run = watched(TRAINING + LOOP + "import time; time.sleep(0.3)\n" + LOOP + ending)
    assert run.code == code
    assert len(run.steps()) >= 10
    assert [kind for kind in ("exception", "end") if run.events(kind)] == kinds


def test_spawned_ranks_are_ranks_and_their_parent_is_none(watched: Watch) -> None:
    run = watched(
        """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

def train(rank, file):
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2 + rank, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (os.path.abspath("meeting"),), nprocs=2)
"""
    )
    assert run.code == 0, run.err
    assert run.ranks == [0, 1]
    for rank in (0, 1):
        assert [step.samples for step in run.steps(rank)] == 3 * [2 + rank]
        assert run.events("end", rank)[0].steps == 3
    assert sorted(str(told["rank"]) for told in run.processes()) == ["0", "1", "None"]


def test_a_fork_that_trains_is_the_rank(watched: Watch) -> None:
    run = watched(
        "import torch, torch.multiprocessing as mp\ndef train():\n"
        + (TRAINING + LOOP).replace("\n", "\n    ")
        + """
if __name__ == "__main__":
    child = mp.get_context("fork").Process(target=train)
    child.start()
    child.join()
    print(child.exitcode)
"""
    )
    assert (run.code, run.out, run.err) == (0, "0\n", "")
    assert len(run.steps()) == run.events("end")[0].steps == 10
    assert [told["rank"] for told in run.processes()].count(0) == 1


def test_a_process_that_outlives_the_job_says_nothing(watched: Watch) -> None:
    """The hook is removed when the job has ended; a process that began before may import torch afterwards."""
    run = watched(
        "import os, shutil, _allpull\nshutil.rmtree(os.path.dirname(_allpull.__path__[0]))\nimport torch\nprint('done')"
    )
    assert (run.code, run.out, run.err) == (0, "done\n", "")
    assert run.ranks == []


def test_an_error_of_ours_is_not_the_programs(watched: Watch) -> None:
    run = watched(
        TRAINING
        + """
class Odd(list):
    @property
    def shape(self):
        raise RuntimeError("look elsewhere")

loader = DataLoader(data, batch_size=16, collate_fn=lambda rows: Odd(rows))
for rows in loader:
    x = torch.stack([row[0] for row in rows])
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print("done")
"""
    )
    assert (run.code, run.out) == (0, "done\n")
    assert run.err.count("loaders: no longer observed") == 1, run.err
    assert [(event.part, event.reason) for event in run.events("switched_off")] == [
        ("loaders", "RuntimeError: look elsewhere")
    ]
    assert len(run.steps()) == 5


@pytest.mark.parametrize("flag", ["-I", pytest.param("-E", marks=pytest.mark.slow)])
def test_a_python_that_ignores_its_environment_is_left_alone(watched: Watch, flag: str) -> None:
    run = watched(TRAINING + LOOP, start=(sys.executable, flag))
    assert (run.code, run.ranks, run.processes()) == (0, [], [])


def test_a_full_disk_ends_the_record_and_not_the_program(watched: Watch) -> None:
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    run = watched(TRAINING + limit + LOOP.replace("range(2)", "range(20)") + "print(len(losses))", TMPDIR=os.devnull)
    assert (run.code, run.out) == (0, "100\n"), run.err
    assert "recording stopped" in run.err


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_thread_that_first_asks_for_gradients_is_the_one_that_trains(watched: Watch, threads: int) -> None:
    run = watched(
        "import torch, threading\nfrom torch import nn\ndef train(start):\n"
        + (TRAINING + "start.wait()\n" + LOOP).replace("\n", "\n    ")
        + f"""
start = threading.Barrier({threads})
trainers = [threading.Thread(target=train, args=(start,)) for _ in range({threads})]
for trainer in trainers:
    trainer.start()
for trainer in trainers:
    trainer.join()
print("done")
"""
    )
    assert (run.code, run.out, run.err) == (0, "done\n", "")
    steps = run.steps()
    assert len(steps) == run.events("end")[0].steps >= 10  # of two that come at once, both may make the first
    if threads == 1:
        assert all(step.backward_ns and step.optimizer_ns for step in steps)
        assert [step.samples for step in steps] == 2 * [16, 16, 16, 16, 6]
        assert [step.epoch for step in steps] == 5 * [0] + 5 * [1]


def test_a_program_that_closes_all_descriptors_is_recorded_and_finds_nothing_of_ours_in_its_own(
    watched: Watch,
) -> None:
    run = watched(
        TRAINING
        + LOOP
        + """
import os, time
os.closerange(3, 256)  # as one that becomes a daemon
theirs = [open(f"own{number}", "w+") for number in range(20)]  # which have our numbers now
time.sleep(0.3)
"""
        + LOOP
        + "print([file.read() for file in theirs] == 20 * [''])\n"
    )
    assert (run.code, run.out, run.err) == (0, "True\n", "")
    assert len(run.steps()) == run.events("end")[0].steps == 20


def test_two_trainings_in_one_process_are_one_run(watched: Watch) -> None:
    run = watched(TRAINING + LOOP + TRAINING + LOOP)
    assert (run.code, run.err) == (0, "")
    assert [step.samples for step in run.steps()] == 4 * [16, 16, 16, 16, 6]
    assert [step.epoch for step in run.steps()] == [epoch for epoch in range(4) for _ in range(5)]


def test_packages_that_import_torch_themselves_are_observed(
    watched: Watch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Functions for them are registered once torch is imported: amid their own import, if they come first."""
    site = tmp_path_factory.mktemp("site")
    (site / "deepspeed").mkdir()
    (site / "deepspeed" / "__init__.py").write_text("import torch\n")
    (site / "safetensors").mkdir()
    (site / "safetensors" / "__init__.py").write_text("")
    (site / "safetensors" / "torch.py").write_text("import torch\ndef save_file(tensors, name): open(name, 'wb')\n")
    begin = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    save = "save_file(model.state_dict(), 'model.safetensors')\ndist.destroy_process_group()\n"
    first = "import FIRST\nfrom safetensors.torch import save_file\n"
    for package in ("deepspeed", "safetensors.torch"):
        program = first.replace("FIRST", package) + TRAINING + begin + LOOP + save
        run = watched(program, start=torchrun(1), PYTHONPATH=str(site))
        assert run.code == 0, run.err
        assert [span.name for span in run.events("span")] == ["checkpoint"]
        expected = ["deepspeed"] if package == "deepspeed" else []
        assert run.events("process_group")[-1].unobserved == expected
