"""Copy a run directory into the tests, without the names of the machine that made it.

    python tools/keep_run.py RUN tests/runs/v1.0

A real run of every version of the format stays in the tests for ever, so that a later allpull is known to read it.
Times and numbers are kept as they are. Host, paths, boot and remote are replaced; checkpoints are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from allpull.rundir import layout

NODE = "node1"
BOOT = "00000000-0000-4000-8000-000000000001"
PLACE = "/home/user/runs"
PYTHON = "/home/user/.venv/bin/python"
TEXT_FILES = {".json", ".jsonl", ".sh", ".log"}


def main() -> int:
    """Copy and scrub; the exit code is 1 where a name of the machine would have stayed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory of one host")
    parser.add_argument("to", type=Path, help="folder to make")
    options = parser.parse_args()
    run, to = options.run.resolve(), options.to
    host = json.loads(next((run / "hosts").glob("*.json")).read_text(encoding="utf-8"))
    replacements = words_to_replace(run, host)
    to.mkdir(parents=True)
    for path in sorted(run.rglob("*")):
        relative = path.relative_to(run)
        if path.is_dir() or relative.parts[0] in {layout.CHECKPOINTS, layout.DERIVED} or path.suffix not in TEXT_FILES:
            continue
        name = f"{NODE}{path.suffix}" if path.stem == layout.slug(host["host"]) else path.name
        copy = to / relative.parent / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(scrubbed(path, host["host"], replacements), encoding="utf-8")
    left = [word for word in replacements for copy in to.rglob("*") if copy.is_file() and word in copy.read_text()]
    if left:
        print(f"still there: {', '.join(sorted(set(left)))}", file=sys.stderr)
    return 1 if left else 0


def words_to_replace(run: Path, host: dict[str, Any]) -> dict[str, str]:
    """What in any text names the machine, longest first, each with what to put there."""
    record = json.loads((run / layout.RUN_JSON).read_text(encoding="utf-8"))
    words = {
        str(run.parent): PLACE,
        str(Path(record["command"][0]).parent): str(Path(PYTHON).parent),
        sys.executable: PYTHON,
        str(Path(sys.executable).parent): str(Path(PYTHON).parent),
        str(Path.cwd()): "/home/user",
        host["kernel"]: host["kernel"].partition("-")[0],
    }
    if host["boot_id"]:
        words[host["boot_id"]] = BOOT
    return dict(sorted(words.items(), key=lambda pair: -len(pair[0])))


def scrubbed(path: Path, host: str, replacements: dict[str, str]) -> str:
    """The text of one file; the host's name is replaced where it is a whole word of a value that names hosts."""
    text = path.read_text(encoding="utf-8")
    for word, instead in replacements.items():
        text = text.replace(word, instead)
    text = re.sub(rf'("host": ?)"{re.escape(host)}"', rf'\1"{NODE}"', text)
    if path.name == layout.RUN_JSON:
        record = json.loads(text)
        record["hosts"] = [NODE] * len(record["hosts"])
        record["git"] = record["git"] and {**record["git"], "remote": None}
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    return text


if __name__ == "__main__":
    sys.exit(main())
