"""What an array is: its indices, the runs made of it, and what Slurm says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.errors import BadInput
from allpull.launch.job import prepare
from allpull.launch.job_array import MAX_TASKS, indices, task_spec
from allpull.launch.slurm.commands import by_index
from allpull.launch.slurm.launcher import Slurm, step_command
from allpull.observe.affinity import ranges
from allpull.rundir.job_file import JobFile
from allpull.schema.spec import LaunchSpec, RunSpec, SlurmSpec
from allpull.schema.trainspec import TrainSpec

GOLDEN = Path(__file__).parent / "slurm" / "golden"
SPEC = RunSpec(launch=LaunchSpec(launcher="slurm"), slurm=SlurmSpec(array="0-2"), train=TrainSpec(seed=5))


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=40), st.sampled_from(["", "%1", "%12"]))
def test_a_list_names_what_it_was_made_of(chosen, together):
    assert indices(ranges(sorted(chosen)) + together) == tuple(sorted(chosen))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_a_range_with_a_step_is_that_of_python(first, length, step):
    assert indices(f"{first}-{first + length}:{step}") == tuple(range(first, first + length + 1, step))


def test_a_mistyped_range_makes_no_million_directories():
    assert len(indices(f"1-{MAX_TASKS}")) == MAX_TASKS
    with pytest.raises(BadInput, match="more than 1000 runs"):
        indices("0-9999999")


def test_each_run_differs_by_its_seed_alone():
    runs = [task_spec(SPEC, index) for index in (0, 3)]
    assert [run.train.seed for run in runs] == [5, 8]
    assert all(replace(run, train=SPEC.train) == SPEC for run in runs)
    with pytest.raises(BadInput, match="seed 4294967296"):
        task_spec(replace(SPEC, train=TrainSpec(seed=2**32 - 1)), 1)


def test_all_is_on_disk_before_anything_starts(tmp_path):
    job = prepare(SPEC, kind="train", module="m", command=["m"], out=tmp_path)
    assert sorted(path.name for path in job.directory.iterdir()) == [f"{job.directory.name}_{n}" for n in range(3)]
    nonces = {JobFile.read(str(run.file)).nonce for run in job.tasks}
    assert len(nonces) == 3
    assert f'run={job.directory}/{job.directory.name}_"$SLURM_ARRAY_TASK_ID"\n' in Slurm().plan(job)


def test_a_bad_array_leaves_no_directory(tmp_path):
    with pytest.raises(BadInput, match=r"slurm\.array"):
        prepare(replace(SPEC, slurm=SlurmSpec(array="5-1")), kind="train", module="m", command=["m"], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_the_launcher_slurm_makes_arrays(tmp_path):
    spec = replace(SPEC, launch=LaunchSpec(launcher="local"))
    job = prepare(spec, kind="train", module="m", command=["m"], out=tmp_path)
    assert (job.tasks, job.record.seed) == ((), 5)
    assert (job.directory / "run.json").exists()


def test_inside_an_allocation_there_is_no_array(tmp_path):
    job = prepare(SPEC, kind="train", module="m", command=["m"], out=tmp_path)
    with pytest.raises(BadInput, match="inside an allocation nothing is submitted"):
        step_command(job, {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"})


def test_what_slurm_says_of_an_array_is_told_apart_by_index():
    """Runs that wait share a paragraph; the name of a job is any text."""
    found = by_index((GOLDEN / "scontrol_show_array.txt").read_text("utf-8"))
    assert {index: facts.state for index, facts in found.items()} == {
        0: "FAILED",
        1: "RUNNING",
        **dict.fromkeys((3, 4, 7), "PENDING"),
    }
    assert (found[0].exit_code, found[1].restarts, found[1].hosts) == (7, 2, "n1")


def test_a_list_that_slurm_cut_short_tells_nothing_wrong():
    text = (GOLDEN / "scontrol_show_array.txt").read_text("utf-8").replace("3-4,7%2", "3-4,7,9,...%2")
    assert set(by_index(text)) == {0, 1}
    assert by_index("") == {}
