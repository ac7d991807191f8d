"""What allpull says of a reader's own script: the commands of the README and of the first tutorial, with their output.

    python benchmarks/own_script.py [--output FILE] [--picture FILE]

The script is ``examples/train.py``, then the same with workers for its loader. ``--picture`` renders the top of the
report of the first run in Chromium: the image in the README.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from stored import ROOT, keep

SCRIPT = ROOT / "examples" / "train.py"
LOADER = "batch_size=32, sampler=sampler"
CHANGE = (f"{LOADER})", f"{LOADER}, num_workers=2, persistent_workers=True)")
TRAIN = "allpull run -- torchrun --nproc-per-node 2 train.py"
FIRST = (TRAIN, "allpull explain latest", "allpull report latest")
THEN = ("allpull rename latest before", TRAIN, "allpull compare before --with latest", "allpull ls")
ENVIRONMENT = {"COLUMNS": "90", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
PICTURE_PIXELS = "1200,820"


def said(command: str, folder: Path) -> list[str]:
    """Run ``command`` in ``folder``; both its streams in their order, without names of this machine."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path}
    done = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{command} ended with {done.returncode}")
    output = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node1", done.stdout.replace(f"{folder}/", ""))
    return [line.rstrip() for line in output.splitlines()]


def draw(page: Path, picture: Path) -> None:
    """Render the top of ``page`` as PNG."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    size = [f"--window-size={PICTURE_PIXELS}", "--force-device-scale-factor=1", "--hide-scrollbars"]
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", *size]
    subprocess.run([*command, f"--screenshot={picture.resolve()}", page.as_uri()], check=True, capture_output=True)


def main() -> None:
    """Run the commands and print or keep what they said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        shutil.copy(SCRIPT, folder)
        outputs = [(command, said(command, folder)) for command in FIRST]
        if options.picture is not None:
            draw(folder / "runs" / "report.html", options.picture)
        for command in THEN:
            if command == TRAIN:
                (folder / "train.py").write_text(SCRIPT.read_text("utf-8").replace(*CHANGE), encoding="utf-8")
            outputs.append((command, said(command, folder)))
    keep(options.output, {"commands": [{"command": command, "lines": lines} for command, lines in outputs]})


if __name__ == "__main__":
    main()
