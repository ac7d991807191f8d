"""A build is told from another of the same version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import allpull
from allpull.rundir.build import build


def test_another_source_is_another_build_and_a_copy_of_the_same_is_not(tmp_path: Path) -> None:
    copied = tmp_path / "allpull"
    shutil.copytree(Path(allpull.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from allpull.rundir.build import build; print(build())"

    def of_the_copy() -> str:
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            check=True,
        )
        return ran.stdout.decode().strip()

    assert of_the_copy() == build()
    assert build().startswith(f"{allpull.__version__}+")
    with (copied / "units.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert of_the_copy() != build()
