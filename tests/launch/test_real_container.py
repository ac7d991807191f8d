"""Ranks inside a real container: Apptainer builds an image from the definition that we ship, and runs them in it.

``make apptainer`` gets the runtime and a base; no registry is asked. The image here has Python alone and is shown the
packages that this Python has, for torch takes a minute to install. With ``ALLPULL_TORCH_WHEEL``, the path of a wheel
of torch for CPUs, the whole definition is built as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from services import SshHosts

import allpull
from allpull.errors import BadInput
from allpull.launch import container
from allpull.launch.execute import execute
from allpull.launch.job import Job, prepare
from allpull.launch.local import Local
from allpull.launch.mpi import Mpi
from allpull.schema.spec import ContainerSpec, LaunchSpec, ObserveSpec, RunSpec

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/apptainer"
WHEEL = os.environ.get("ALLPULL_TORCH_WHEEL", "")
SYSTEM = "a container of the tests"
PATIENCE_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def apptainer() -> Iterator[None]:
    if not (FOLDER / "bin/apptainer").exists():
        pytest.skip("no Apptainer in build/apptainer: make apptainer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{FOLDER}/bin:{os.environ['PATH']}")
        try:
            runtime("exec", str(FOLDER / "base"), "true")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"Apptainer cannot run here: {container.complaint(error.stderr)}")
        yield


def runtime(*words: str, **options: object) -> str:
    done = subprocess.run(["apptainer", *words], capture_output=True, text=True, check=True, **options)
    return done.stdout


def sections() -> dict[str, str]:
    """The sections of our definition; under "" what stands before them."""
    parts = re.split(r"(?m)^%(\w+)\n", (ROOT / "containers/allpull.def").read_text("utf-8"))
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


def definition(sections_kept: dict[str, str]) -> str:
    header, count = re.subn(
        r"Bootstrap: docker\nFrom: python:3\.11-slim-bookworm",
        lambda _: f"Bootstrap: localimage\nFrom: {FOLDER}/base",
        sections()[""],
    )
    assert count == 1
    return header + "".join(f"%{name}\n{text}" for name, text in sections_kept.items() if name)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of all that our definition says but for what it installs; it tells its own name as its system."""
    folder = tmp_path_factory.mktemp("an image")
    kept = {name: text for name, text in sections().items() if name not in ("files", "post")}
    (folder / "small.def").write_text(definition(kept), "utf-8")
    runtime("build", "--notest", "--sandbox", str(folder / "box"), str(folder / "small.def"))
    (folder / "box/etc/os-release").unlink()
    (folder / "box/etc/os-release").write_text(f'PRETTY_NAME="{SYSTEM}"\n')
    return folder / "box"


@pytest.fixture(scope="module")
def box(image: Path) -> ContainerSpec:
    """That image with the packages of this Python: found without PYTHONPATH, which a clean environment has not."""
    if not runtime("exec", str(image), "python3", "-V").startswith("Python {}.{}.".format(*sys.version_info)):
        pytest.skip("the container's Python is of another version: it cannot use the packages of this one")
    shown = {str(Path(allpull.__file__).parents[1]), *(path for path in sys.path if path.endswith("site-packages"))}
    places = image / "usr/local/lib/python{}.{}/dist-packages".format(*sys.version_info)
    places.mkdir(parents=True)
    (places / "shown.pth").write_text("".join(f"{path}\n" for path in sorted(shown)))
    return ContainerSpec(image=str(image), binds=tuple(f"{path}:{path}:ro" for path in sorted(shown)))


def options(box: ContainerSpec) -> list[str]:
    return ["--set", f"container.image={box.image}", "--set", f"container.binds={json.dumps(box.binds)}"]


@pytest.fixture
def program(tmp_path: Path, image: Path, box: ContainerSpec) -> Callable[..., Job]:
    """A function that prepares a job in the container whose ranks run the text of a program."""

    def make(text: str, *options: str, launcher: str = "local") -> Job:
        (tmp_path / "program.py").write_text(text)
        inside = ContainerSpec(
            image=box.image,
            binds=(*box.binds, f"{tmp_path}/program.py:/usr/local/lib/python3.11/dist-packages/program.py"),
            options=options,
        )
        launch = LaunchSpec(launcher=launcher, ranks=2, threads=3, grace_s=2)
        spec = RunSpec(container=inside, launch=launch, observe=ObserveSpec(counters=False))
        return prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "it's a place")

    return make


def said(job: Job, rank: int) -> dict[str, str]:
    log = (job.directory / f"job/logs/rank-{rank:05d}.log").read_text()
    found: dict[str, str] = json.loads(log.splitlines()[-1])
    return found


def test_apptainer_reads_our_definition_as_we_do(image: Path) -> None:
    found = json.loads(runtime("inspect", "--all", "--json", str(image)))["data"]["attributes"]
    ours = {name: text.strip() for name, text in sections().items()}
    assert found["helpfile"].strip() == ours["help"]
    for name in ("runscript", "test"):
        assert found[name].partition("\n")[2].strip() == ours[name]
    assert found["environment"]["/.singularity.d/env/90-environment.sh"].endswith(ours["environment"])
    assert dict(line.strip().split(None, 1) for line in ours["labels"].splitlines()).items() <= found["labels"].items()


def test_its_test_fails_where_a_command_of_it_does(image: Path) -> None:
    """The shell goes on after a failure unless it is told not to, and there is no torch in this image."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        runtime("test", str(image))
    assert "No module named 'torch'" in failed.value.stderr


def test_ranks_train_inside_and_the_run_is_complete(run_cli, box: ContainerSpec, tmp_path: Path) -> None:
    out = tmp_path / "a \"b\" $(touch owned) 'c'"
    small = ("--set", "train.epochs=1", "--set", "observe.counter_interval_s=0.1")
    done = run_cli("train", "digits", "-n", "2", "--out", str(out), *small, *options(box), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = out.iterdir()
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert (shown["ranks"], shown["hosts"], shown["status"]) == (2, 1, "completed")
    assert shown["accuracy"] is not None
    inside = runtime("exec", box.image, "python3", "-V").split()[1]
    assert json.loads((directory / "run.json").read_text())["versions"]["python"] == inside
    (host,) = (directory / "hosts").iterdir()
    assert json.loads(host.read_text())["os"] == SYSTEM
    (counted,) = (directory / "counters").iterdir()
    assert set(json.loads(counted.read_text().splitlines()[-1])["ranks"]) == {"0", "1"}
    assert len(list((directory / "steps").iterdir())) == len(list((directory / "events").iterdir())) == 2
    assert list((directory / "checkpoints").iterdir())
    assert not list(tmp_path.rglob("owned"))


@pytest.fixture
def over_ssh(ssh_hosts: SshHosts, box: ContainerSpec) -> Iterator[list[str]]:
    """Options of a training inside, on two hosts that see the image alone: what the tests make is hidden from them."""
    image = ssh_hosts.folder / "box"
    subprocess.run(["cp", "-a", box.image, str(image)], check=True)
    (ssh_hosts.programs / "apptainer").symlink_to(FOLDER / "bin/apptainer")
    yield ["--launcher", "ssh:node[1-2]", "--set", "launch.grace_s=3", *options(replace(box, image=str(image)))]
    (ssh_hosts.programs / "apptainer").unlink()
    shutil.rmtree(image)


@pytest.mark.ssh
def test_hosts_that_share_no_folder_train_inside(
    run_cli: Any, ssh_hosts: SshHosts, over_ssh: list[str], tmp_path: Path
) -> None:
    before = ssh_hosts.left()
    out = tmp_path / "it's here"
    small = ("--set", "data.limit=200", "--set", "train.epochs=2", "--out", str(out))
    done = run_cli("train", "digits", "-n", "2", *over_ssh, *small, **ssh_hosts.environment)
    assert done.returncode == 0, done.stderr
    (directory,) = out.iterdir()
    shown = json.loads(run_cli("show", str(directory), "--json").stdout)["runs"][0]
    assert (shown["ranks"], shown["hosts"], shown["status"]) == (2, 2, "completed")
    assert [json.loads(path.read_text())["os"] for path in (directory / "hosts").iterdir()] == [SYSTEM] * 2
    assert not [name for name in set(ssh_hosts.left()) - set(before) if name.startswith("allpull")]


def _is_rank(process: psutil.Process) -> bool:
    try:
        return "allpull.observe.rank" in process.cmdline()
    except psutil.NoSuchProcess:  # it ended since it was listed
        return False


@pytest.mark.ssh
def test_a_container_on_another_host_ends_with_its_connection(
    ssh_hosts: SshHosts, over_ssh: list[str], tmp_path: Path
) -> None:
    """Apptainer hears that its terminal was hung up, and says nothing of it to what it runs."""
    command = [sys.executable, "-m", "allpull", "train", "digits", "-n", "2", *over_ssh, "--set", "train.epochs=5000"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], env={**os.environ, **ssh_hosts.environment})
    try:
        deadline = time.monotonic() + PATIENCE_S
        while sum(_is_rank(one) for one in ssh_hosts.processes()) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        inside = ssh_hosts.processes()
        assert len(inside) >= 4  # an agent and a rank a host
    finally:
        process.kill()
        process.wait()
    assert psutil.wait_procs(inside, timeout=60)[1] == []


SAY = "import json, os; print(json.dumps({**os.environ, 'here': os.getcwd()}))\n"
HOSTILE = "a 'b' \"c\" $(touch owned) `touch owned` \\ $HOME\nSLURM_PROCID=7"


def test_a_clean_environment_has_what_makes_a_rank(
    program: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--containall gives /tmp, home, processes and environment of its own; the ranks know themselves all the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_HOSTILE", HOSTILE)
    monkeypatch.setenv("GLOO_API_KEY", "s3cret")
    monkeypatch.setenv("PYTHONPATH", "/of/the/host")
    monkeypatch.setenv("OF_NOBODY", "1")
    launcher = "mpi" if shutil.which("mpirun") else "local"  # mpirun tells its ranks more
    job = program(SAY, "--containall", launcher=launcher)
    record = execute(job, Mpi() if launcher == "mpi" else Local(), lambda: None)
    assert record.exit is not None
    assert record.exit.code == 0, record.exit
    ranks = [said(job, rank) for rank in range(2)]
    assert [(rank["RANK"], rank["WORLD_SIZE"]) for rank in ranks] == [("0", "2"), ("1", "2")]
    for rank in ranks:
        assert (rank["OMP_NUM_THREADS"], rank["PYTHONUNBUFFERED"], rank["NCCL_HOSTILE"]) == ("3", "1", HOSTILE)
        assert not {"PYTHONPATH", "OF_NOBODY", "GLOO_API_KEY"} & set(rank)
        assert rank["PYTHONNOUSERSITE"] == "1"
    assert not list(tmp_path.rglob("owned"))


def test_the_environment_and_the_exit_code_pass_through(
    program: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_USER", HOSTILE)
    job = program(f"{SAY}import time\nif os.environ['RANK'] == '1': os._exit(7)\ntime.sleep(300)\n")
    record = execute(job, Local(), lambda: None)
    rank = said(job, 1)
    assert (rank["OF_THE_USER"], rank["OMP_NUM_THREADS"], rank["here"]) == (HOSTILE, "3", str(tmp_path))
    assert record.exit is not None
    assert (record.exit.code, record.exit.rank) == (7, 1)
    assert not processes_of(job.directory)


def processes_of(directory: Path) -> list[psutil.Process]:
    """What runs of the job in ``directory``."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in word for word in process.info["cmdline"] or [])
    ]


START = """
import ctypes, subprocess, sys, time
def ask(): ctypes.CDLL(None).prctl(1, 15)  # as allpull's launchers do: end when we die
subprocess.Popen(sys.argv[1:], preexec_fn=ask)
time.sleep(300)
"""


def test_a_guarded_container_ends_with_whoever_started_it(program: Callable[..., Job]) -> None:
    job = program("import time; from allpull import marks; marks.step(1); time.sleep(300)\n")
    words = [*container.wrap(job.spec.container, ["python3"], shown=[job.directory]), "-m", "allpull.observe.agent"]
    command = container.guarded(job.spec.container, [*words, str(job.file)])
    starter = subprocess.Popen([sys.executable, "-c", START, *command], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(list((job.directory / "steps").iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        inside = [process for process in processes_of(job.directory) if process.pid != starter.pid]
        assert len(inside) >= 3  # an agent and two ranks
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    _, alive = psutil.wait_procs(inside, timeout=60)
    for process in alive:
        process.kill()
    assert not alive


def test_what_cannot_run_is_one_clear_error(
    image: Path, box: ContainerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # containers see it, and may see where it leads
    assert container.check(box)["python"] == runtime("exec", str(image), "python3", "-V").split()[1]
    (tmp_path / "bad.sif").write_text("no image")
    bad = [
        (ContainerSpec(image=str(tmp_path / "bad.sif")), "does not start: FATAL: .*image format not recognized"),
        (ContainerSpec(image=str(FOLDER / "base")), "has no allpull and no torch for its python3"),
        (ContainerSpec(image=str(image), python="/no/python"), "does not start: FATAL: .*/no/python"),
        (ContainerSpec(image=str(image), binds=("/no/folder",)), "does not start: FATAL: .*/no/folder"),
        (ContainerSpec(image=str(image), options=("--no-such",)), "does not start: Error .*unknown flag: --no-such"),
    ]
    for spec, words in bad:
        with pytest.raises(BadInput, match=words):
            container.check(spec)


@pytest.mark.skipif(not WHEEL, reason="ALLPULL_TORCH_WHEEL is not set: the path of a wheel of torch for CPUs")
def test_the_whole_definition_is_built_and_trains(run_cli, tmp_path: Path) -> None:
    """Its %test trains two ranks; then a launcher outside does. Needs a package registry and takes a minute."""
    wheel = Path(WHEEL).resolve()
    whole = sections()
    whole["files"] = f"    {wheel} /opt/allpull/{wheel.name}\n{whole['files']}"
    whole["post"], count = re.subn(r"(?m) torch$", f" /opt/allpull/{wheel.name}", whole["post"])
    assert count == 1  # else the plain wheel would come, with CUDA
    (tmp_path / "whole.def").write_text(definition(whole), "utf-8")
    whole_image = tmp_path / "whole"
    try:
        runtime("build", "--sandbox", str(whole_image), str(tmp_path / "whole.def"), cwd=ROOT)
        command = ["train", "digits", "-n", "2", "--set", "train.epochs=1", "--out", str(tmp_path / "runs")]
        done = run_cli(*command, "--set", f"container.image={whole_image}")
    finally:
        shutil.rmtree(whole_image, ignore_errors=True)  # two gigabytes, which pytest would keep
    assert done.returncode == 0, done.stderr
