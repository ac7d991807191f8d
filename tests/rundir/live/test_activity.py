"""What others on the host see of a rank at this moment."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from allpull.observe.identity import Identity
from allpull.observe.recording.recorder import Recorder
from allpull.observe.recording.step_line import BACKWARD, COLLECTIVE, FORWARD
from allpull.rundir import layout
from allpull.rundir.live.activity import NOTHING, OPERATION, PLACE, PLACES, SINCE_NS, STEP, live_words
from allpull.rundir.live.snapshot import read_live


class Clock:
    """A clock that moves by one at each look."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[tuple[Recorder, Clock, Path]]:
    for folder in ("steps", "events"):
        (tmp_path / folder).mkdir()
    clock = Clock()
    who = Identity(rank=0, local_rank=0, ranks=1, host="h")
    recorder = Recorder(str(tmp_path), who, budget=1 << 20, warmup_steps=0, clock_ns=clock)
    yield recorder, clock, tmp_path
    recorder.close(ended_well=True)


def seen(directory: Path) -> tuple[int, int]:
    words = read_live(directory.resolve(), 0)
    assert words is not None
    return words[PLACE], words[SINCE_NS]


def test_the_innermost_phase_is_seen_and_the_one_around_it_once_it_has_ended(
    rank: tuple[Recorder, Clock, Path],
) -> None:
    recorder, clock, directory = rank
    recorder.enter(FORWARD)
    assert seen(directory) == (FORWARD, clock.now_ns)
    recorder.enter(COLLECTIVE)
    assert seen(directory) == (COLLECTIVE, clock.now_ns)
    recorder.leave()
    assert seen(directory) == (FORWARD, clock.now_ns)
    recorder.leave()
    assert seen(directory) == (NOTHING, clock.now_ns)
    recorder.enter(BACKWARD)
    recorder.step(None)
    assert seen(directory)[0] == BACKWARD  # a step that ends inside a phase does not end it
    words = read_live(directory.resolve(), 0)
    assert words is not None
    assert (words[STEP], words[OPERATION]) == (1, NOTHING)


def test_a_rank_that_did_nothing_yet_is_nowhere(tmp_path: Path) -> None:
    live_words(str(tmp_path), 0)
    assert seen(tmp_path) == (NOTHING, 0)


def test_a_full_disk_hides_the_numbers_and_does_not_end_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, f"no room for {len(content)}")

    monkeypatch.setattr(os, "write", full)
    words = live_words(str(tmp_path), 0)  # mapping a file with holes instead would be SIGBUS at the first store
    assert isinstance(words, list)


def test_more_words_than_there_are_places_share_the_last(rank: tuple[Recorder, Clock, Path]) -> None:
    recorder, _, directory = rank
    for number in range(10 * PLACES):
        with recorder.phase(f"phase {number}"):
            pass
    assert seen(directory)[0] == NOTHING
    recorder.step(None)
    recorder.close(ended_well=True)
    record = json.loads((directory / layout.steps_file(0)).read_text().splitlines()[1])
    assert len(record["named"]) <= PLACES
    assert sum(record["named"].values()) == 10 * PLACES
