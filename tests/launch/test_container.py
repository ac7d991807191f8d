"""A container is the same command with its runtime in front, and the definition that we ship is one.

A stand-in for the runtime reads its command line as Apptainer's manual says; ``test_container_real`` has a real one.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import allpull
from allpull.errors import BadInput, MissingPart
from allpull.launch import container
from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.launch.local import Local
from allpull.schema.spec import ContainerSpec, LaunchSpec, ObserveSpec, RunSpec

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = f"""#!{sys.executable}
import os, sys
arguments = sys.argv[1:]
kept = dict(os.environ)
assert arguments.pop(0) == "exec", "only exec is known"
binds = []
while arguments and arguments[0].startswith("-"):
    option = arguments.pop(0)
    if option in ("--bind", "-B"):
        binds.append(arguments.pop(0))
    elif option == "--cleanenv":
        kept = {{"PATH": os.environ["PATH"], "HOME": "/root"}}
    else:
        assert option == "--nv", "Error for command exec: unknown flag: " + option
image = arguments.pop(0)
assert os.path.exists(image) or "://" in image, image
kept["FAKE_CONTAINER"] = image + "|" + "|".join(binds)
os.execvpe(arguments[0], arguments, kept)
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Apptainer on the PATH, and an image."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apptainer").write_text(RUNTIME)
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    image = tmp_path / "an image.sif"
    image.write_text("")
    return image


def test_without_an_image_nothing_changes() -> None:
    assert container.wrap(ContainerSpec(), ["python3", "-V"]) == ["python3", "-V"]
    assert container.python(ContainerSpec()) == sys.executable


def test_the_command_follows_the_image() -> None:
    spec = ContainerSpec(runtime="singularity", image="docker://a/b:1", binds=("/data",), options=("--nv", "--userns"))
    assert container.wrap(spec, ["python3", "-m", "x"], shown=[Path("/runs/a b")]) == [
        *("singularity", "exec", "--bind", "/runs/a b", "--bind", "/data", "--nv", "--userns"),
        *("docker://a/b:1", "python3", "-m", "x"),
    ]


def test_an_image_is_never_an_option() -> None:
    assert container.wrap(ContainerSpec(image="--nv"), ["x"])[2] == "./--nv"


@pytest.mark.parametrize("path", ["/runs/a:b", "/runs/a,b"])
def test_a_folder_that_cannot_be_named_to_the_runtime_is_refused(path: str) -> None:
    with pytest.raises(BadInput, match="cannot be shown to a container"):
        container.wrap(ContainerSpec(image="a.sif"), ["x"], shown=[Path(path)])


def test_a_missing_image_or_runtime_is_one_clear_error(runtime: Path) -> None:
    with pytest.raises(BadInput, match=r"no\.sif is not there"):
        container.check(ContainerSpec(image="no.sif"))
    with pytest.raises(MissingPart, match="no singularity on this machine"):
        container.check(ContainerSpec(runtime="singularity", image=str(runtime)))


@pytest.mark.torch
def test_a_container_is_started_once_to_see_what_it_has(runtime: Path) -> None:
    expected = {"python": sys.version.split()[0], "torch": version("torch")}
    assert container.check(ContainerSpec(image=str(runtime), python=sys.executable)) == expected
    assert container.check(ContainerSpec(image="docker://a/b", python=sys.executable)) == expected
    assert container.check(ContainerSpec()) == {}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"allpull": None, "torch": "2.13.0"}, "has no allpull for its"),
        ({"allpull": None, "torch": None}, "has no allpull and no torch for its"),
        ({"allpull": "0.0.1", "torch": "2.13.0"}, f"has allpull 0.0.1, and this is {allpull.__version__}"),
    ],
)
def test_a_container_without_what_ranks_need_is_refused(
    runtime: Path, tmp_path: Path, found: dict[str, str | None], words: str
) -> None:
    inside = tmp_path / "python"
    inside.write_text(f"#!/bin/sh\necho 'a greeting'\necho '{json.dumps({**found, 'python': '3.11.2'})}'\n")
    inside.chmod(0o755)
    with pytest.raises(BadInput, match=words):
        container.check(ContainerSpec(image=str(runtime), python=str(inside)))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("echo 'FATAL:   no such file' >&2; echo 'Usage:' >&2; exit 255", "does not start: FATAL: no such file"),
        ("echo 'Illegal instruction' >&2; exit 132", "does not start: Illegal instruction"),
        ("exit 3", "does not start: exit code 3"),
        ("echo hello", "does not start: exit code 0"),
        ("echo '[1]'", "does not start: exit code 0"),
    ],
)
def test_a_container_that_does_not_start_says_why(runtime: Path, tmp_path: Path, answer: str, words: str) -> None:
    inside = tmp_path / "python"
    inside.write_text(f"#!/bin/sh\n{answer}\n")
    inside.chmod(0o755)
    with pytest.raises(BadInput, match=words):
        container.check(ContainerSpec(image=str(runtime), python=str(inside)))


@pytest.mark.parametrize("option", ["--cleanenv", "--cleanenv=true", "--containall", "-e", "-C", "-ce"])
def test_options_that_empty_the_environment_are_known(option: str) -> None:
    assert container.wrap(ContainerSpec(image="a.sif", options=(option,)), ["x"])[0] == "sh"


@pytest.mark.parametrize("option", ["--nv", "--contain", "--cleanenv=false", "-c", "--env=A=b", "-B/Code:/e"])
def test_options_that_leave_it_alone_too(option: str) -> None:
    assert container.wrap(ContainerSpec(image="a.sif", options=(option,)), ["x"])[0] == "apptainer"


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.text("ab c'\"$`\\;&|\n", max_size=20)
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_and_argument_reaches_a_clean_environment(runtime: Path, value: str, argument: str) -> None:
    command = [sys.executable, "-c", "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"]
    box = ContainerSpec(image=str(runtime), options=("--cleanenv",))
    given = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "NCCL_TEST": value, "PYTHONPATH": "/host", "OTHER": "x"}
    done = subprocess.run(container.wrap(box, [*command, argument]), env=given, capture_output=True, check=True)
    arguments, seen = json.loads(done.stdout)
    assert arguments == [argument]
    assert seen["NCCL_TEST"] == value
    assert not {"PYTHONPATH", "OTHER"} & set(seen)


def test_secrets_do_not_stand_in_a_command_line(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "s3cret")
    monkeypatch.setenv("SLURM_JWT", "s3cret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    command = container.wrap(ContainerSpec(image=str(runtime), options=("--cleanenv",)), ["env"])
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "NCCL_DEBUG=INFO" in said
    assert "s3cret" not in said


def test_without_a_container_there_is_nothing_to_guard() -> None:
    assert container.guarded(ContainerSpec(), ["python3"]) == ["python3"]


@pytest.mark.parametrize("program", ["exit 7", "kill -KILL $$"])
def test_a_guard_has_the_exit_code_of_what_it_guards(program: str) -> None:
    command = container.guarded(ContainerSpec(image="a.sif"), ["sh", "-c", program])
    assert subprocess.run(command, check=False).returncode == {"exit 7": 7}.get(program, 128 + signal.SIGKILL)


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_guard_passes_on_what_it_is_told_and_waits(tmp_path: Path, told: signal.Signals) -> None:
    trap = f"trap 'sleep 0.3; touch {tmp_path}/ended; exit 5' {told.name[3:]}"
    program = f"{trap}; touch {tmp_path}/begun; while :; do sleep 0.05; done"
    process = subprocess.Popen(container.guarded(ContainerSpec(image="a.sif"), ["sh", "-c", program]))
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(told)
    assert process.wait(120) == 5
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("program", ["exit 7", "kill -KILL $$"])
def test_one_that_attends_to_the_terminal_has_the_exit_code_of_its_command(program: str) -> None:
    box = ContainerSpec(image="a.sif")
    bare = subprocess.run(["sh", "-c", program], check=False).returncode
    attended = subprocess.run(container.attended(box, ["sh", "-c", program]), check=False).returncode
    assert attended == (bare if bare >= 0 else 128 - bare)
    assert container.attended(ContainerSpec(), ["x"]) == ["x"]


def test_a_terminal_that_is_hung_up_takes_along_what_its_first_process_does_not_tell(tmp_path: Path) -> None:
    """The kernel tells the first process alone; a stand-in for Apptainer here hears nothing of it."""
    deaf = "trap '' HUP; \"$@\" & trap : HUP; while kill -0 $! 2>/dev/null; do wait; done"
    ends = "import signal, time; signal.signal(1, lambda *_: exit(0)); open('up', 'w').close(); time.sleep(60)"
    inside = ["sh", "-c", deaf, "sh", sys.executable, "-c", ends]
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        container.attended(ContainerSpec(image="a.sif"), inside), cwd=tmp_path, stdin=terminal, stdout=terminal,
        stderr=terminal, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  no thread runs here
    )  # fmt: skip
    os.close(terminal)
    deadline = time.monotonic() + 120
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)  # a warning, sent to whatever has the name of the agent among its words
    time.sleep(0.1)
    assert process.poll() is None
    os.close(controller)
    process.wait(timeout=120)


@pytest.mark.ranks
def test_ranks_run_inside_the_container(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("import os; print(os.environ['FAKE_CONTAINER'])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    box = ContainerSpec(image=str(runtime), binds=("/usr:/usr:ro",), options=("--nv",), python=sys.executable)
    spec = RunSpec(container=box, launch=LaunchSpec(ranks=1), observe=ObserveSpec(counters=False))
    job = prepare(spec, kind="run", module="program", command=["program"], out=tmp_path / "a run's place")
    record = execute(job, Local(), lambda: None)
    assert record.exit is not None
    assert record.exit.code == 0, record.exit
    assert list(job.record.versions) == ["allpull"]  # until the container has said more
    assert (record.versions["python"], record.versions["torch"]) == (sys.version.split()[0], version("torch"))
    said = (job.directory / "job/logs/rank-00000.log").read_text().strip()
    assert said == f"{runtime}|{job.directory}|/usr:/usr:ro"


def sections(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Header and sections of an Apptainer definition, as its manual says: keys first, then ``%name`` on lines."""
    header: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        if line.startswith("%"):
            name = line[1:].strip()
            assert name not in found, f"%{name} twice"
            found[name] = []
        elif name is not None:
            found[name].append(line)
        elif line.strip() and not line.startswith("#"):
            key, colon, value = line.partition(":")
            assert colon, line
            header[key.strip().lower()] = value.strip()
    return header, {name: "\n".join(lines) for name, lines in found.items()}


@pytest.fixture(scope="module")
def definition() -> tuple[dict[str, str], dict[str, str]]:
    return sections((ROOT / "containers/allpull.def").read_text("utf-8"))


def test_the_definition_has_a_source_and_known_sections(definition: tuple[dict[str, str], dict[str, str]]) -> None:
    header, found = definition
    assert header == {"bootstrap": "docker", "from": "python:3.11-slim-bookworm"}
    assert {"files", "post", "environment", "runscript", "test", "labels"} <= set(found)
    known = {"setup", "files", "environment", "post", "runscript", "startscript", "test", "labels", "help", "arguments"}
    assert set(found) <= known
    assert all(body.strip() for body in found.values())


@pytest.mark.parametrize("name", ["post", "environment", "runscript", "test"])
def test_its_scripts_are_shell(definition: tuple[dict[str, str], dict[str, str]], name: str) -> None:
    done = subprocess.run(["sh", "-n"], input=definition[1][name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_it_copies_is_there_and_is_enough_to_install(definition: tuple[dict[str, str], dict[str, str]]) -> None:
    copied = [line.split()[0] for line in definition[1]["files"].splitlines() if line.strip()]
    assert all((ROOT / name).exists() for name in copied)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for name in ("README.md", "LICENSE", "NOTICE"):
        assert name in project
        assert name in copied


def test_its_labels_are_pairs(definition: tuple[dict[str, str], dict[str, str]]) -> None:
    lines = [line.split(None, 1) for line in definition[1]["labels"].splitlines() if line.strip()]
    assert lines
    assert all(len(words) == 2 for words in lines)
