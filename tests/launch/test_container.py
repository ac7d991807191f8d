"""A container is the same command with its runtime in front, and the definition that we ship is one.

No runtime is here to be tried: a stand-in takes its place, which reads its command line as Apptainer's manual says.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
assert arguments.pop(0) == "exec", "only exec is known"
binds = []
while arguments and arguments[0].startswith("-"):
    option = arguments.pop(0)
    if option in ("--bind", "-B"):
        binds.append(arguments.pop(0))
    else:
        assert option in ("--nv", "--cleanenv"), option
image = arguments.pop(0)
assert os.path.exists(image), image
os.environ["FAKE_CONTAINER"] = image + "|" + "|".join(binds)
os.execvp(arguments[0], arguments)
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
    spec = ContainerSpec(
        runtime="singularity", image="docker://a/b:1", binds=("/data",), options=("--nv", "--cleanenv")
    )
    assert container.wrap(spec, ["python3", "-m", "x"], shown=[Path("/runs/a b")]) == [
        *("singularity", "exec", "--bind", "/runs/a b", "--bind", "/data", "--nv", "--cleanenv"),
        *("docker://a/b:1", "python3", "-m", "x"),
    ]


def test_an_image_is_never_an_option() -> None:
    assert container.wrap(ContainerSpec(image="--nv"), ["x"])[2] == "./--nv"


@pytest.mark.parametrize("path", ["/runs/a:b", "/runs/a,b"])
def test_a_folder_that_cannot_be_named_to_the_runtime_is_refused(path: str) -> None:
    with pytest.raises(BadInput, match="cannot be shown to a container"):
        container.wrap(ContainerSpec(image="a.sif"), ["x"], shown=[Path(path)])


def test_a_missing_image_or_runtime_is_one_clear_error(runtime: Path) -> None:
    container.check(ContainerSpec(image=str(runtime)))
    container.check(ContainerSpec(image="docker://a/b"))
    with pytest.raises(BadInput, match=r"no\.sif is not there"):
        container.check(ContainerSpec(image="no.sif"))
    with pytest.raises(MissingPart, match="no singularity on this machine"):
        container.check(ContainerSpec(runtime="singularity", image=str(runtime)))


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
