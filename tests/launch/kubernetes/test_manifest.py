"""Manifests against the API's own types, and their pods' script run for real as two processes that share a folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.scripts.conftest import with_frameworks

from allpull.errors import BadInput, UnknownName
from allpull.jobs.command import CommandRequest, command_plan, resolve
from allpull.jobs.training import TrainingRequest, training_plan
from allpull.jobs.training import resolve as resolve_training
from allpull.launch import host_endings
from allpull.launch.kubernetes import training
from allpull.launch.ports import choose_port
from allpull.rundir.read.run import read_run

SETS = ("launch.hosts=2", "kubernetes.image=registry.example/train:1", "kubernetes.claim=runs")


def manifest(kind: str, *sets: str, command: tuple[str, ...] = ("train.py",), ranks: int = 8) -> dict[str, Any]:
    """The parsed manifest of ``allpull run -n RANKS --launcher kubernetes:KIND -- COMMAND``."""
    request = CommandRequest(command=command, ranks=ranks, launcher=f"kubernetes:{kind}", sets=(*SETS, *sets))
    text = command_plan(resolve(request), Path("runs"), ["allpull", "run"])
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def training_manifest(kind: str, *sets: str, ranks: int = 8) -> dict[str, Any]:
    """The parsed manifest of ``allpull train digits -n RANKS --launcher kubernetes:KIND``."""
    request = TrainingRequest(recipe="digits", sets=(*SETS, *sets), ranks=ranks, launcher=f"kubernetes:{kind}")
    text = training_plan(resolve_training(request), Path("runs"), ["allpull", "train", "digits"])
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def pod_of(jobset: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one indexed Job of a JobSet, and its pod."""
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    return job, job["template"]["spec"]


def expanded(text: str) -> str:
    """``text`` as Kubernetes hands it to a container without variables of these names (its documented syntax)."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda hit: "$" if hit[1] == "$" else hit[0], text)


def test_pods_of_a_jobset_meet_at_the_name_that_the_headless_service_gives_pod_0() -> None:
    made = manifest("jobset", "kubernetes.gpus=4", "kubernetes.memory=64Gi")
    job, pod = pod_of(made)
    assert (job["parallelism"], job["completions"], job["completionMode"], job["backoffLimit"]) == (2, 2, "Indexed", 0)
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    name = made["metadata"]["name"]
    assert variables["PET_MASTER_ADDR"] == f"{name}-ranks-0-0.{name}"  # JobSet: <name>-<job>-<index>-<pod>.<subdomain>
    assert made["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert (variables["PET_NNODES"], variables["PET_NPROC_PER_NODE"]) == ("2", "4")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "memory": "64Gi"}
    assert {one["name"] for one in pod["volumes"]} == {one["name"] for one in container["volumeMounts"]}


def test_a_trainjob_leaves_torchruns_variables_to_its_runtime() -> None:
    spec = manifest("trainjob")["spec"]
    trainer = spec["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    assert not [one for one in trainer["env"] if one["name"].startswith("PET_")]
    assert "resourcesPerNode" not in trainer  # an empty one makes a single rank per host of it
    assert manifest("trainjob", "kubernetes.cpus=8")["spec"]["trainer"]["resourcesPerNode"]["limits"] == {"cpu": "8"}


@pytest.mark.slow
@pytest.mark.parametrize("make", [manifest, training_manifest])
@pytest.mark.parametrize(
    ("kind", "model"), [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")]
)
def test_the_types_of_the_api_accept_every_field(kind: str, model: str, make: Callable[..., dict[str, Any]]) -> None:
    """The models are generated from the API of Kubeflow's Trainer, whose templates are JobSets."""
    env = {**os.environ, **with_frameworks("kubeflow-trainer-api")}
    made = make(kind, "kubernetes.gpus=4", "kubernetes.cpus=8", "kubernetes.namespace=ml", "launch.interface=eth0")
    code = (
        f"import json, sys; from kubeflow_trainer_api.models import {model} as Model\n"
        "given = json.load(sys.stdin); back = Model.from_dict(given).to_dict()\n"
        "print(json.dumps(back, default=str))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, input=json.dumps(made), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == made  # a field that the API does not know would be dropped


@pytest.mark.parametrize("word", ["it's", "$(HOME)", "$$", "$$(x)", "a b", "=1", "\N{SNOWMAN}", "`id`", '"'])
def test_words_of_the_command_reach_the_program_unchanged(word: str) -> None:
    _, pod = pod_of(manifest("jobset", command=("train.py", "--name", word)))
    script = expanded(pod["containers"][0]["command"][2])
    (line,) = [one for one in script.splitlines() if "torch.distributed.run" in one]
    assert shlex.split(line.removesuffix("&"))[-3:] == ["train.py", "--name", word]


@pytest.mark.parametrize(
    ("name", "kind"), [("Mein Lauf_7/é", "jobset"), ("7b-" + "x" * 80, "trainjob"), ("---", "jobset")]
)
def test_names_are_ones_that_kubernetes_accepts(name: str, kind: str) -> None:
    made = manifest(kind, f"name={json.dumps(name)}")["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)  # DNS-1035
    assert len(f"{made}-ranks-0-9999-abcde") <= 63


def test_what_cannot_be_a_manifest_is_said() -> None:
    plain = CommandRequest(command=("train.py",), ranks=2, launcher="kubernetes:jobset")
    with pytest.raises(BadInput, match=r"kubernetes\.image is not set"):
        command_plan(resolve(plain), Path("runs"), [])
    with pytest.raises(UnknownName, match="jobset, trainjob"):
        resolve(CommandRequest(command=("train.py",), ranks=2, launcher="kubernetes:pod"))
    with pytest.raises(BadInput, match="max_restarts"):
        manifest("jobset", "launch.max_restarts=1")


def test_nothing_is_submitted(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    sets = [word for text in SETS for word in ("--set", text)]
    where = ["-n", "2", "--launcher", "kubernetes:jobset", *sets]
    done = run_cli("run", *where, "--", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "kubectl create -f -" in done.stderr
    assert run_cli("train", "digits", *where, cwd=tmp_path).returncode == 2
    assert not list(tmp_path.glob("runs/*"))


def test_the_pods_of_a_training_get_its_options_and_need_no_data_here() -> None:
    absent = ("data.name=pack", "data.path=/nowhere", "name=$(HOME)")
    _, pod = pod_of(training_manifest("jobset", *absent, "train.epochs=3"))
    variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    options = json.loads(expanded(variables[training.VARIABLE]))
    assert (options["name"], options["data"]["path"], options["train"]["epochs"]) == ("$(HOME)", "/nowhere", 3)
    assert "max_restarts" not in options["launch"]  # as by default


def test_a_training_of_whose_pods_one_is_lost_is_closed_as_failed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(host_endings, "SETTLE_S", 0.0)
    options = json.dumps({"name": "digits", "launch": {"ranks": 2, "hosts": 2, "launcher": "kubernetes:jobset"}})
    directory = training.open_run(options, tmp_path, ["allpull", "train", "digits"])
    record = training.close_run(directory, 0)
    assert (record.status, record.launcher, record.kind) == ("failed", "kubernetes", "train")
    assert record.exit is not None
    assert record.exit.reason == "2 of 2 pods did not report how their ranks ended"


PROGRAM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = int(sys.argv[1])
for step in range(steps):
    optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward(); optimizer.step()
    if steps > 1000: import time; time.sleep(0.01); open("began", "w").close()
dist.barrier()
dist.destroy_process_group()
"""


def pods(tmp_path: Path, steps: int) -> list[subprocess.Popen[str]]:
    """The two pods of a JobSet that records ``PROGRAM``, as processes."""
    (tmp_path / "train.py").write_text(PROGRAM)
    made = manifest("jobset", *here(tmp_path), "observe.warmup_steps=1", command=("train.py", str(steps)), ranks=2)
    return started(made, tmp_path)


def here(tmp_path: Path) -> tuple[str, ...]:
    """Options for pods that are processes of this machine."""
    return (f"kubernetes.mount={tmp_path}/runs", f"container.python={sys.executable}")


def started(made: dict[str, Any], tmp_path: Path) -> list[subprocess.Popen[str]]:
    """The pods of the JobSet ``made``: its own command and variables; what the cluster sets is set here."""
    _, pod = pod_of(made)
    (container,) = pod["containers"]
    (tmp_path / "runs").mkdir()
    variables = {one["name"]: expanded(one["value"]) for one in container["env"] if "value" in one}
    variables |= {
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(choose_port(one_host=True)),
        "ALLPULL_JOB_UID": "0a1b",
    }
    command = [expanded(word) for word in container["command"]]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **variables, "PET_NODE_RANK": str(index), "HOSTNAME": f"pod-{index}"},
            cwd=tmp_path,
            text=True,
            stderr=subprocess.PIPE,
        )
        for index in (1, 0)  # the first must wait for the second
    ]


def wait_for(pods: list[subprocess.Popen[str]]) -> None:
    """Until all have ended well; what they said is the failure's text, whole."""
    said = "".join(pod.communicate(timeout=240)[1] for pod in pods)
    assert [pod.returncode for pod in pods] == [0, 0], said


@pytest.mark.slow
@pytest.mark.ranks
def test_the_script_of_two_pods_records_one_run(tmp_path: Path) -> None:
    wait_for(pods(tmp_path, 12))
    (directory,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    run = read_run(directory)
    assert (run.record.status, run.record.ranks) == ("completed", 2)
    assert run.steps.group_by("rank").len().sort("rank").rows() == [(0, 12), (1, 12)]
    assert not list((tmp_path / "runs").glob(".allpull-*"))


@pytest.mark.slow
@pytest.mark.ranks
def test_two_pods_train_one_recipe(tmp_path: Path) -> None:
    made = training_manifest("jobset", *here(tmp_path), "train.epochs=1", "train.stop_after=6", ranks=2)
    wait_for(started(made, tmp_path))
    (directory,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    run = read_run(directory)
    assert (run.record.status, run.record.kind, run.record.ranks) == ("completed", "train", 2)
    assert run.steps.group_by("rank").len().sort("rank").rows() == [(0, 6), (1, 6)]
    assert not list((tmp_path / "runs").glob(".allpull-*"))


@pytest.mark.slow
@pytest.mark.ranks
def test_a_pod_that_is_deleted_ends_its_ranks_and_closes_the_run(tmp_path: Path) -> None:
    running = pods(tmp_path, 100_000)
    deadline = time.monotonic() + 120
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for pod in running:
        pod.send_signal(signal.SIGTERM)
    codes = [pod.wait(timeout=120) for pod in running]
    for pod in running:
        assert pod.stderr is not None
        pod.stderr.close()
    assert 0 not in codes
    (directory,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert read_run(directory).record.status == "failed"
