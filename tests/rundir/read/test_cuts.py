"""Records that are cut off: numbers that differ from those of the whole run come with a gap that says why."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.rundir import layout
from allpull.rundir.read.run import read_run
from allpull.schema.gap import texts

KEPT = Path(__file__).parents[2] / "runs"
WHOLE = sorted(path.name for path in KEPT.iterdir())


def numbers(directory: Path) -> tuple[dict[str, Any], set[str]]:
    """What ``show`` says of a run, and its gaps."""
    result = metrics(AlignedRun(read_run(directory))).model_dump()
    return {name: value for name, value in result.items() if name != "gaps"}, set(result["gaps"])


def cut(path: Path, rng: random.Random) -> None:
    """Cut ``path`` at a random byte, half of the time at the end of a line, which nothing in the file shows."""
    content = path.read_bytes()
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        at = content.find(b"\n", at) + 1
    path.write_bytes(content[:at])


def trial(tmp_path: Path, whole: str, seed: int) -> None:
    rng, directory = random.Random(seed), tmp_path / str(seed)
    shutil.copytree(KEPT / whole, directory)
    before, gaps = numbers(directory)
    files = sorted(path for folder in ("steps", "events", "counters") for path in (directory / folder).iterdir())
    for path in rng.sample(files, rng.choice([1, 1, 2, len(files)])):
        cut(path, rng)
    after, new = numbers(directory)
    assert after == before or new - gaps, f"seed {seed} of {whole}: other numbers and no gap"


@pytest.mark.parametrize("seed", range(12))
def test_no_number_changes_without_a_gap(tmp_path: Path, seed: int) -> None:
    trial(tmp_path, WHOLE[seed % len(WHOLE)], seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 212))
def test_no_number_changes_without_a_gap_in_two_hundred_cuts(tmp_path: Path, seed: int) -> None:
    trial(tmp_path, WHOLE[seed % len(WHOLE)], seed)


def keep_lines(path: Path, keep: Callable[[int], int]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: keep(len(lines))]))


def test_all_ranks_cut_after_half_of_their_steps_say_so(tmp_path: Path) -> None:
    shutil.copytree(KEPT / WHOLE[-1], tmp_path / "run")
    before = texts(read_run(tmp_path / "run").gaps)
    for path in (tmp_path / "run" / layout.STEPS).iterdir():
        keep_lines(path, lambda lines: 1 + (lines - 1) // 2)
    (new,) = [gap for gap in read_run(tmp_path / "run").gaps if gap.text not in before]
    assert new.kind == "step records"
    assert new.text.startswith("ranks 0, 1: the last ")
    assert new.ranks == (0, 1)


def of_counters(directory: Path) -> list[str]:
    return [gap.text for gap in read_run(directory).gaps if gap.kind == "host counters"]


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (lambda before, inside: before + inside[:2], "s before its last step"),
        (lambda before, inside: before, "s before its last step"),
        (lambda before, inside: [], "there is no sample"),
        (lambda before, inside: inside[len(inside) // 2 :], "s after its first step"),
        (lambda before, inside: [*before, *inside[:2], *inside[-3:]], "no sample for up to"),
        (lambda before, inside: [*before, *inside[:2], *inside[2::4], inside[-1]], None),  # as a budget thins them
    ],
)
def test_counters_that_do_not_cover_the_steps_say_so(tmp_path: Path, kept: Any, text: str | None) -> None:
    shutil.copytree(KEPT / WHOLE[-1], tmp_path / "run")
    assert of_counters(tmp_path / "run") == []
    steps = read_run(tmp_path / "run").steps
    (path,) = (tmp_path / "run" / layout.COUNTERS).iterdir()
    header, *samples = path.read_bytes().splitlines(keepends=True)
    before = [line for line in samples if json.loads(line)["t_ns"] < steps["begin_ns"].min()]
    path.write_bytes(b"".join([header, *kept(before, samples[len(before) :])]))
    said = of_counters(tmp_path / "run")
    assert len(said) == (0 if text is None else 1)
    assert all(text in one for one in said)


def test_a_counters_file_that_is_gone_or_without_a_first_line_is_said_once(tmp_path: Path) -> None:
    shutil.copytree(KEPT / WHOLE[-1], tmp_path / "run")
    (path,) = (tmp_path / "run" / layout.COUNTERS).iterdir()
    path.write_bytes(b"")
    assert of_counters(tmp_path / "run") == ["counters: 1 file without a whole first line: not read"]
    path.unlink()
    assert of_counters(tmp_path / "run") == [f"no counters of host {path.stem}: there is no file of them"]
    document = json.loads((tmp_path / "run" / layout.RUN_JSON).read_text())
    document["spec"]["observe"]["counters"] = False
    (tmp_path / "run" / layout.RUN_JSON).write_text(json.dumps(document))
    assert of_counters(tmp_path / "run") == []


@pytest.mark.parametrize("kept", [3, 8, 30])  # the last ones without any tag: none is of a warm-up
def test_ranks_that_lost_their_first_steps_say_so(tmp_path: Path, kept: int) -> None:
    shutil.copytree(KEPT / WHOLE[-1], tmp_path / "run")
    before = texts(read_run(tmp_path / "run").gaps)
    for path in (tmp_path / "run" / layout.STEPS).iterdir():
        header, *lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([header, *lines[-kept:]]))
        lost = len(lines) - kept
    (new,) = [gap for gap in read_run(tmp_path / "run").gaps if gap.text not in before]
    assert new.text.startswith(f"ranks 0, 1: the first {lost} steps left no record")


def test_counters_that_lost_only_samples_after_the_steps_say_so(tmp_path: Path) -> None:
    shutil.copytree(KEPT / WHOLE[-1], tmp_path / "run")
    (path,) = (tmp_path / "run" / layout.COUNTERS).iterdir()
    header, *samples = path.read_bytes().splitlines(keepends=True)
    marks = json.dumps({**json.loads(header), "marks_last": True}).encode() + b"\n"
    last = json.dumps({**json.loads(samples[-1]), "last": True}).encode() + b"\n"
    path.write_bytes(b"".join([marks, *samples[:-1], last]))
    assert of_counters(tmp_path / "run") == []
    path.write_bytes(b"".join([marks, *samples[:-1]]))
    host = json.loads(header)["host"]
    said = f"counters of host {host}: the last samples are missing, or the sidecar was killed"
    assert of_counters(tmp_path / "run") == [said]
    path.write_bytes(b"".join([header, *samples[:-1]]))  # an older sidecar marked none
    assert of_counters(tmp_path / "run") == []


def test_a_rank_without_an_end_has_records_up_to_the_last_epoch_that_it_began(tmp_path: Path) -> None:
    shutil.copytree(KEPT / WHOLE[-1], tmp_path / "run")
    path = tmp_path / "run" / layout.events_file(0)
    events = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in events if json.loads(line).get("kind") != "end"))
    began = max(json.loads(line).get("step", 0) for line in events if json.loads(line).get("kind") == "epoch")
    first = min(json.loads(line)["step"] for line in events if json.loads(line).get("kind") == "epoch")
    steps = tmp_path / "run" / layout.steps_file(0)
    header, *lines = steps.read_bytes().splitlines(keepends=True)
    steps.write_bytes(b"".join([header, *(line for line in lines if json.loads(line)["step"] < began - 2)]))
    made = began - first
    assert any(
        gap.text.startswith(f"rank 0: the last 2 steps of {made:,} left no record") and gap.kind == "step records"
        for gap in read_run(tmp_path / "run").gaps
    )
