"""Every command that a page shows is typed here, in the order of the page, and what the page prints of it is compared.

A page is a session in a folder of its own. A command is left out only where a comment behind it says why, to the reader
as well: ``# needs Slurm``, ``# takes an hour``. Trainings whose output is not shown are cut to two epochs. Where output
is shown, numbers, ids, hosts and paths are masked, and what lies between them is looked up in what was printed.
What several pages type is typed once, and the others go on from its run directories; what another test types as it
stands on a page, and reads more of, is typed there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(console|diff|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
REASON = re.compile(r"\s#\s+((?:needs|takes) .+)$")
# Which findings and notes a busy machine gives differs from run to run; their wording does not.
LEAST_SHARE = 0.75
STATES = {"allpull doctor": {0, 3}, "allpull compare": {0, 3}, "allpull study audit": {0, 3}}
"""Exit codes that state a result and are no failure."""
SHORTER = {
    "allpull train": "--set train.epochs=2",
    "allpull demo": "--set train.epochs=2",
    "allpull rehearse": "--steps 10",
}
"""What a command gets in addition where its output is not shown and it does not set the same itself."""
QUICK_PROBES = re.compile(r"allpull probe (loader|storage|compute) (?!.*--for )")
"""Probes measure each line of their tables for a moment only: the numbers that they print are masked."""
SHORT_PROGRAM = {
    "README.md": re.compile(r"allpull run -n 2 "),
    "docs/how-to/observe-any-script.md": re.compile(r"allpull run "),
}
"""Runs of ``train.py`` of which the page shows nothing, neither at once nor later: two epochs instead of six."""
PLANNED = {
    "docs/how-to/train-fast.md": re.compile(r"allpull train (?!.*(checkpoint|--resume))"),
    "docs/how-to/resume.md": re.compile(r"allpull train .*save_on_term"),
    "docs/how-to/train.md": re.compile(r"allpull train digits -n 2( .*resnet14.*)?$"),
}
"""Trainings of a page that are only planned: none goes on from them, and `tests/train` runs their options."""
TRIED_ELSEWHERE = {"docs/labs/index.md": re.compile(r"allpull lab sgd -n 2")}
"""What another test types as it stands here, and reads more of: `tests/labs/test_sgd.py`."""
KEPT_RUNS = {
    "docs/how-to/compare.md": ["before", "after", "old", "new", "baseline", *(f"runs/{letter}" for letter in "abcdef")],
    "docs/how-to/export.md": ["runs/20260101T000000Z_digits_n2_a"],
    "docs/how-to/watch.md": ["runs/20261120T120000Z_train_n8_1a2b3c4d"],
}
"""Run directories that a page takes for granted: copies of the one that stays in the tests."""
OWN_SCRIPT = (
    "allpull run -- torchrun --nproc-per-node 2 train.py",
    "allpull explain latest",
    "allpull report latest",
)
"""How several pages begin: this is typed once, and each of them goes on from there."""
TRAINED_ONCE = re.compile(r"allpull train digits -n ([12])( --set train\.epochs=5| --out scaling)$")
"""A training that several pages need: it is done once, and each of them has its run directory."""
BEFORE = {
    "docs/how-to/compare.md": ["allpull compare old runs/a runs/b --with new runs/c runs/d --json > identical.json"],
    "docs/how-to/explain.md": [
        "allpull train digits -n 1 --set train.epochs=5",
        "allpull rename latest one-rank",
        "allpull train digits -n 2 --set train.epochs=5",
        "allpull rename latest two-ranks",
    ],
    "docs/how-to/probe.md": ["allpull pack photos/train packs/train --shard-size 16KiB"],
}
"""Commands of earlier days."""
PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(400, 8), torch.randint(0, 2, (400,))), batch_size=8):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@dataclass(frozen=True, kw_only=True)
class Typed:
    """One command of a page: what it prints there (nothing: not shown), and why it is left out, if it is."""

    command: str
    shown: list[str]
    reason: str | None


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of the fences of a page that matter, in their order."""
    for match in FENCE.finditer(text):
        yield match[1], match[2]


def commands(block: str) -> list[Typed]:
    """The commands of a console block with their output.

    >>> [(one.command, one.shown, one.reason) for one in commands("$ srun x    # needs Slurm\\n$ y\\nsaid\\n")]
    [('srun x', [], 'needs Slurm'), ('y', ['said'], None)]
    """
    typed = list[Typed]()
    for line in block.splitlines():
        if line.startswith("$ "):
            reason = REASON.search(line)
            command = line[2 : reason.start() if reason else None].strip()
            typed.append(Typed(command=command, shown=[], reason=reason[1] if reason else None))
        elif typed:
            typed[-1].shown.append(line)
    return typed


def masked(text: str) -> str:
    """``text`` on one line, without what differs from run to run.

    >>> masked("step 49.1 ms (1.80× to 1.86×) in runs/20261122T160657Z_train_a03345e4")
    'step # (# to #) in runs/RUN'
    """
    text = text.replace(socket.gethostname(), "node1")
    text = re.sub(r"\d{8}T\d{6}Z\w*", "RUN", text)
    text = re.sub(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b", "HEX", text)
    text = re.sub(r"[−+-]?\d[\d,.]*\d|[−+-]?\d", "#", text)
    text = re.sub(r"#\s?(?:ns|µs|ms|s|pp|%|×|[kMG]?B(?:/s)?)(?![\w])", "#", text)
    return " ".join(re.sub(r"─+|[•│]", " ", text).split())


def fragments(shown: list[str]) -> list[str]:
    """What has to be found again: the text between masked numbers, two words or more."""
    cut = re.split(r"RUN|HEX|[#.:;,()…]+", masked("\n".join(shown)))
    return list(dict.fromkeys(one for part in cut if len((one := part.strip(" ±–")).split()) > 1))


def differences(shown: list[str], printed: str) -> list[str]:
    """Fragments of a page that the command did not print; none where enough of them were found."""
    wanted, actual = fragments(shown), masked(printed)
    missing = [one for one in wanted if one not in actual]
    return missing if len(missing) > (1 - LEAST_SHARE) * len(wanted) else []


@dataclass(frozen=True, kw_only=True)
class TypedOnce:
    """What several pages type: ``demo`` gives what it printed and where, ``begun`` the same of how pages begin.

    ``trained`` has the run directory of a training, by its number of ranks.
    """

    demo: Callable[[], tuple[str, Path]]
    folder: Path
    begun: dict[tuple[str, ...], tuple[str, Path]] = field(default_factory=dict)
    trained: dict[str, Path] = field(default_factory=dict)


@pytest.fixture(scope="module")
def typed_once(demo: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory) -> TypedOnce:
    """What was typed for earlier pages."""

    def demo_here() -> tuple[str, Path]:
        done = demo()
        return f"{done.err}{done.out}".replace(f"{done.folder}/", ""), done.folder

    return TypedOnce(demo=demo_here, folder=tmp_path_factory.mktemp("typed"))


class Session:
    """A shell in a folder, for one page."""

    def __init__(self, folder: Path, page: str, text: str, typed_once: TypedOnce) -> None:
        self.folder, self.page = folder, page
        self.history, self.typed_once = list[str](), typed_once
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        plain = {"COLUMNS": "90", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.environment = {**os.environ, **plain, "PATH": path}
        shutil.copytree(ROOT / "examples", folder / "examples")
        for name in ("train.py", "cluster.toml"):
            shutil.copy(ROOT / "examples" / name, folder)
        (folder / "job.sh").write_text("torchrun --nproc-per-node 2 train.py\n", encoding="utf-8")
        (folder / "pkg").mkdir()
        (folder / "pkg" / "train.py").write_text(PROGRAM, encoding="utf-8")
        if "traces/" in text:
            self._traces()
        if "photos/" in text or "imagenet/" in text or "packs/train" in text:
            self._photos()
        kept = max((ROOT / "tests" / "runs").iterdir())
        for number, name in enumerate(KEPT_RUNS.get(page, [])):
            shutil.copytree(kept, folder / name)
            record = folder / name / "run.json"
            run_id = json.loads(record.read_text("utf-8"))["id"]
            renumbered = record.read_text("utf-8").replace(run_id, f"{run_id[:-2]}{number:02x}")
            record.write_text(renumbered, encoding="utf-8")
        for command in BEFORE.get(page, []):
            self.run(command)

    def _traces(self) -> None:
        real = ROOT / "tests" / "traces" / "real"
        for rank in (0, 1):
            for target in (self.folder, self.folder / "traces"):
                target.mkdir(exist_ok=True)
                shutil.copy(real / f"sampled_rank-{rank}.json.gz", target / f"rank{rank}.json.gz")

    def _photos(self) -> None:
        image = pytest.importorskip("PIL.Image")
        for folder in ("photos/train", "photos/val", "imagenet/train"):
            for label in ("cat", "dog"):
                (self.folder / folder / label).mkdir(parents=True)
                for number in range(64):
                    colour = (4 * number, 99, 200 if label == "cat" else 0)
                    image.new("RGB", (96, 96), colour).save(self.folder / folder / label / f"{number}.jpg")

    def run(self, command: str, *, is_shown: bool = False) -> str:
        """Type one command; all that it prints. It fails where the command does."""
        self.history.append(command)
        if command in {"allpull demo", "make demo"}:  # what the Makefile runs, without installing once more
            return self._continue(self.typed_once.demo())
        if (begun := tuple(self.history)) == OWN_SCRIPT[: len(begun)]:
            if begun in self.typed_once.begun:
                return self._continue(self.typed_once.begun[begun])
            printed = self.type(command, is_shown=True)
            kept = self.typed_once.folder / f"{self.folder.name}-{len(begun)}"
            shutil.copytree(self.folder / "runs", kept / "runs", symlinks=True)
            self.typed_once.begun[begun] = (printed, kept)
            return printed
        if (once := TRAINED_ONCE.match(command)) and not is_shown:
            return self._train_once(command, ranks=once[1], out="scaling" if "--out" in command else "runs")
        return self.type(command, is_shown=is_shown)

    def _train_once(self, command: str, *, ranks: str, out: str) -> str:
        """Train, or have the run directory of the same training."""
        trained, runs = self.typed_once.trained, self.folder / out
        if ranks in trained:
            shutil.copytree(trained[ranks], runs / trained[ranks].name, symlinks=True)
            return ""
        printed = self.type(command, is_shown=False)
        made = max(runs.glob("*_digits_*"))
        trained[ranks] = shutil.copytree(made, self.typed_once.folder / made.name, symlinks=True)
        return printed

    def _continue(self, done: tuple[str, Path]) -> str:
        """Go on from what was typed elsewhere, in a folder like this: what it printed there."""
        printed, folder = done
        (self.folder / "runs").mkdir(exist_ok=True)
        for path in (folder / "runs").iterdir():
            target = self.folder / "runs" / path.name
            shutil.rmtree(target, ignore_errors=True)
            if path.is_dir():
                shutil.copytree(path, target, symlinks=True)
            else:
                shutil.copy(path, target)
        return printed

    def type(self, command: str, *, is_shown: bool) -> str:
        """Type one command here, shortened where its output is not shown; all that it prints."""
        typed = self.here(command, is_shown=is_shown)
        if self.page in SHORT_PROGRAM and SHORT_PROGRAM[self.page].match(command) and not is_shown:
            self.shorten()
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=400,
            check=False,
        )
        allowed = next((codes for start, codes in STATES.items() if command.startswith(start)), {0})
        assert done.returncode in allowed, f"{self.page}: {typed} ended with {done.returncode}\n{done.stdout[-4000:]}"
        return done.stdout.replace(f"{self.folder}/", "")

    def here(self, command: str, *, is_shown: bool) -> str:
        """``command`` with the places of this folder, shortened where its output is not shown."""
        command = command.replace("/scratch/me", str(self.folder))
        if command.startswith("python "):
            command = f"cd {shlex.quote(str(ROOT))} && {command}"
        resumable = sorted(path.parent for path in self.folder.glob("runs/*/checkpoints"))
        if "--resume" in command:
            command = re.sub(r"--resume \S+", f"--resume {resumable[-1].relative_to(self.folder)}", command)
        if command.startswith("allpull demo"):
            command = f"{command} --no-open"
        if QUICK_PROBES.match(command):
            command = f"{command} --for 0.1s"
        if self.page in PLANNED and PLANNED[self.page].match(command) and not is_shown:
            return f"{command} --dry-run"
        if not is_shown:
            command = command.replace("train.epochs=5", "train.epochs=2")
        addition = next((text for start, text in SHORTER.items() if command.startswith(start)), "")
        if "--resume" in command:  # one epoch more than the run that it goes on with
            addition = addition.replace("epochs=2", "epochs=3")
        is_set = addition.partition("=")[0] in command or "--list" in command
        return command if is_shown or is_set else f"{command} {addition}"

    def shorten(self) -> None:
        """Let ``train.py`` train for two epochs."""
        program = self.folder / "train.py"
        shorter, times = re.subn(r"for epoch in range\(\d+\):", "for epoch in range(2):", program.read_text("utf-8"))
        assert times == 1
        program.write_text(shorter, encoding="utf-8")

    def change(self, diff: str) -> None:
        """Apply the lines of a diff to ``train.py``."""
        program = self.folder / "train.py"
        old = "".join(f"{line[1:]}\n" for line in diff.splitlines() if line.startswith("-"))
        new = "".join(f"{line[1:]}\n" for line in diff.splitlines() if line.startswith("+"))
        text = program.read_text("utf-8")
        assert text.count(old) == 1, f"{self.page}: the lines that it changes are not in train.py"
        program.write_text(text.replace(old, new), encoding="utf-8")


def with_commands() -> list[str]:
    """The pages that show a command which is not left out."""
    return [
        page
        for page in PAGES
        for language, block in parts((ROOT / page).read_text("utf-8"))
        if language == "console" and any(one.reason is None for one in commands(block))
    ]


def is_tried_elsewhere(page: str, command: str) -> bool:
    """Whether another test types this."""
    return page in TRIED_ELSEWHERE and TRIED_ELSEWHERE[page].match(command) is not None


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("page", dict.fromkeys(with_commands()))
def test_commands_of_the_page_work_and_print_what_it_shows(page: str, tmp_path: Path, typed_once: TypedOnce) -> None:
    text = (ROOT / page).read_text("utf-8")
    session = Session(tmp_path, page, text, typed_once)
    faults = list[str]()
    for language, block in parts(text):
        if language == "diff":
            session.change(block)
        elif language == "toml":
            (tmp_path / "wide.toml").write_text(block, encoding="utf-8")
        else:
            for one in commands(block):
                if one.reason is None and not is_tried_elsewhere(page, one.command):
                    printed = session.run(one.command, is_shown=any(line.strip() for line in one.shown))
                    faults += [f"{one.command}: {missing}" for missing in differences(one.shown, printed)]
    if faults:
        typed_once.begun.clear()  # another attempt types it again
    assert not faults, f"{page} shows what was not printed; python benchmarks/proof.py --only own_script\n" + "\n".join(
        faults
    )


def test_commands_that_are_left_out_say_why() -> None:
    """A comment behind a command is a reason, so none is left out without one that this file knows how to read."""
    comments = [
        f"{page}: {line}"
        for page in PAGES
        for language, block in parts((ROOT / page).read_text("utf-8"))
        if language == "console"
        for line in block.splitlines()
        if line.startswith("$ ") and re.search(r"\s#\s", line) and not REASON.search(line)
    ]
    assert not comments


def test_comparison_sees_a_reworded_line_and_not_another_number(root: Path) -> None:
    stored = json.loads((root / "benchmarks" / "results" / "own_script.json").read_text("utf-8"))["result"]
    for one in stored["commands"]:
        again = re.sub(r"\d", "7", "\n".join(one["lines"]))
        assert not differences(one["lines"], again), one["command"]
    explained = next(one["lines"] for one in stored["commands"] if "explain" in one["command"])
    reworded = re.sub(r"\b(of|the|for|per|is)\b", "zz", "\n".join(explained))
    assert differences(explained, reworded)
