"""Set up `.venv`: the build of torch that fits this machine, then allpull with the extras that are named.

    python3 tools/environment.py .venv [EXTRA…]

A torch that is already in `.venv` is kept, whatever its version. Otherwise a folder of wheels that pip is configured
to use comes first, then a package index: that of the CPU builds, unless nvidia-smi lists a GPU. So nobody without a GPU
downloads gigabytes of CUDA. The environment variable TORCH_INDEX names another index.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SHOWN = re.compile(r"\s*(?:Downloading|Processing|Using cached) (?:\S*/)?(\S+\.(?:whl|tar\.gz))( \(.*\))?")
CONSTRAINTS = ROOT / "constraints.txt"
PINNED = re.compile(r"^torch==\S+", re.MULTILINE)


def main() -> int:
    """Make or complete the environment; the exit code is 1 where pip failed."""
    folder, extras = Path(sys.argv[1]), sys.argv[2:]
    start = time.monotonic()
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"setting up {folder} with Python {platform.python_version()}", flush=True)
        venv.create(folder, with_pip=True)
    torch = install_torch(str(python))
    if torch is None:
        return 1
    print(f"installing allpull with {', '.join(extras)}", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write(PINNED.sub(f"torch=={torch}", CONSTRAINTS.read_text("utf-8")))
        constraints.flush()
        if not pip(str(python), "-c", constraints.name, "-e", f".[{','.join(extras)}]"):
            return 1
    print(f"{folder} is ready after {time.monotonic() - start:.0f} s", flush=True)
    return 0


def install_torch(python: str) -> str | None:
    """Install the pinned torch unless there is one; the version that is there now, None where pip failed."""
    if (version := torch_version(python)) is not None:
        print(f"torch {version} is already installed", flush=True)
        return version
    (pinned,) = PINNED.findall(CONSTRAINTS.read_text("utf-8"))
    # A folder of wheels that pip is configured to use; without one this fails at once.
    if pip(python, "--no-index", "--no-deps", pinned, is_attempt=True):
        return torch_version(python)
    index = os.environ.get("TORCH_INDEX") or (None if has_gpu() or platform.system() == "Darwin" else CPU_INDEX)
    source = index or "pip's default index"
    print(f"installing {pinned} from {source}; this is the largest download", flush=True)
    if pip(python, "--no-deps", *(["--index-url", index] if index else []), pinned):
        return torch_version(python)
    print(
        f"torch could not be installed from {source}. Name an index that pip reaches (make demo TORCH_INDEX=URL), or "
        f"install any torch from 2.4 on and run make again: {python} -m pip install {pinned}",
        file=sys.stderr,
    )
    return None


def torch_version(python: str) -> str | None:
    """The version of torch in the environment of ``python``, None where there is none."""
    script = "import importlib.metadata as metadata; print(metadata.version('torch'))"
    asked = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def has_gpu() -> bool:
    """Whether nvidia-smi lists a GPU."""
    if shutil.which("nvidia-smi") is None:
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


def pip(python: str, *arguments: str, is_attempt: bool = False) -> bool:
    """Whether pip installed it, with one line per package; where it fails, all of its output, but for an attempt."""
    # Compiling all of torch to bytecode takes longer than copying it; Python compiles what is imported.
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--progress-bar", "off"]
    lines = list[str]()
    with subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(line)
            if shown := package(line):
                print(f"  {shown}", flush=True)
    if running.returncode != 0 and not is_attempt:
        sys.stderr.writelines(lines)
    return running.returncode == 0


def package(line: str) -> str | None:
    """The file that a line of pip names as fetched, with its size.

    >>> package("Downloading polars-1.35.2-py3-none-any.whl (783 kB)")
    'polars-1.35.2-py3-none-any.whl (783 kB)'
    >>> package("  Using cached numpy-2.3.4-cp311-cp311-manylinux_2_27_x86_64.whl.metadata (62 kB)")
    >>> package("Processing /wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    'torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl'
    >>> package("Collecting rich>=13")
    """
    match = SHOWN.fullmatch(line.rstrip())
    return f"{match[1]}{match[2] or ''}" if match else None


if __name__ == "__main__":
    sys.exit(main())
