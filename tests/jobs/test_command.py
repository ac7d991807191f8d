"""What ``allpull run`` refuses before anything is made: options that make no sense, and a command observed twice."""

from __future__ import annotations

import os

import pytest

from allpull.errors import AllpullError, BadInput
from allpull.jobs.command import CommandRequest, resolve


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run where nothing is observed and no batch system is near."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "PBS_", "ALLPULL_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("options", "command", "fault"),
    [
        ({}, [], "no command was given"),
        ({"launcher": "local"}, ["a.out"], "launcher local without a number of ranks"),
        ({"sets": ("launch.threads=4",)}, ["a.out"], "launch.threads: it is for ranks that allpull starts"),
        ({"sets": ("train.lr=3",)}, ["a.out"], "train.lr: an option of allpull's own trainer"),
        ({"sets": ("observe.counter=1",)}, ["a.out"], "did you mean 'observe.counters'"),
        ({"name": "two\nlines"}, ["a.out"], "name"),
        ({"ranks": 2}, ["torchrun", "train.py"], "'torchrun' cannot be started as ranks"),
        ({"ranks": 2}, ["python", "-m", "torch.distributed.run", "train.py"], "cannot be started as ranks"),
        ({"ranks": 2}, ["python"], "cannot be started as ranks"),
        ({"ranks": 2}, ["python", "nosuch.py"], "no such file: nosuch.py"),
        ({"ranks": 2}, ["-m"], "cannot be started as ranks"),
        ({"ranks": 2}, ["-m", "pkg", "\udcff"], "bytes that are not UTF-8"),
        ({"ranks": 0}, ["-m", "pkg"], "launch.ranks"),
        ({"ranks": 2, "launcher": "slrum"}, ["-m", "pkg"], "did you mean 'slurm'"),
        ({"ranks": 2, "launcher": "slurm", "sets": ("slurm.array=0-3",)}, ["-m", "pkg"], "slurm.array"),
    ],
)
@pytest.mark.torch
def test_what_makes_no_sense_is_said_before_anything_is_made(options, command, fault):
    with pytest.raises(AllpullError) as caught:
        resolve(CommandRequest(command=tuple(command), **options))
    assert fault in caught.value.message
    assert caught.value.hint or "known:" in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("variable", "value"), [("ALLPULL_JOB", "/x/job/spec.json"), ("OMPI_COMM_WORLD_SIZE", "4")])
def test_nobody_is_observed_twice_nor_once_a_rank(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadInput, match=r"already observed|started 4 times by mpirun"):
        resolve(CommandRequest(command=("true",)))
