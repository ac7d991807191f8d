"""Derive phases and steps from the notes of a steady loop, as the recorder does from its calls.

One phase is open at a time, and inside it at most a collective, so the time of a phase is a difference of two notes.
"""

from __future__ import annotations

from operator import length_hint
from typing import TYPE_CHECKING, Any, List

from ....rundir.live.activity import NOTHING, hidden_words
from ...recording.recorder import Recorder
from ...recording.step_line import BACKWARD, FORWARD, INPUT

if TYPE_CHECKING:
    from .step_inference import StepInference

FETCHED, LEFT, BACKWARD_ENDS, STEP_ENDS, COLLECTIVE_ENDS, ARRAY, ARRAY_ENDS, CALLED, CREDIT = range(10, 19)
"""Kinds of notes besides the places of phases that begin; up to ``COLLECTIVE_ENDS`` a phase ends."""

FIELDS = 3  # of a note: its kind, its moment, and what else was read


def replay(notes: List[Any], recorder: Recorder, inference: StepInference) -> None:
    """Give ``recorder`` what ``notes`` hold, and remove them; those that arrive meanwhile are replayed too."""
    left = iter(notes)
    live, recorder.live = recorder.live, hidden_words()
    try:
        _derive(zip(left, left, left), recorder, inference)  # noqa: B905  Python 3.9 has no strict
    finally:
        del notes[: len(notes) - length_hint(left)]
        recorder.live = live


def _derive(notes: Any, recorder: Recorder, inference: StepInference) -> None:
    stack, arrays = recorder.stack, inference.arrays
    made = NOTHING if inference.loads else arrays.made_ns
    spent, begin, turned, phases = recorder.spent, recorder.begin_ns, recorder.turned_ns, recorder.phases
    place = stack.pop() if stack else NOTHING
    around = stack.pop() if stack else NOTHING
    for kind, now, reading in notes:
        if kind < FETCHED:  # a phase begins
            if place != NOTHING:
                spent[place] += now - turned
            elif turned == made and kind in (FORWARD, BACKWARD):
                spent[INPUT] += now - max(turned, begin)
            if kind in (FORWARD, BACKWARD):
                _trains(kind, now, reading, recorder, inference)
            around, place, turned = place, kind, now
        elif kind < ARRAY:  # one ends
            spent[place] += now - turned
            turned, place, around = now, around, NOTHING
            phases += 1
            if kind == FETCHED:
                inference.batches.now.waiting.append(reading)
            elif kind == BACKWARD_ENDS:
                recorder.reduced(reading, now)
            elif kind == STEP_ENDS:
                recorder.begin_ns, recorder.phases = begin, phases
                recorder.cut_at(now, reading)
                recorder.write_step()
                inference.steps_taken += 1
                spent, begin, phases = recorder.spent, now, 0
        elif kind == CALLED:
            recorder.collective(*reading)
        elif kind == ARRAY:
            phases += 1
            turned = made = now
        elif kind == CREDIT or turned == made:
            spent[FORWARD if kind == CREDIT else INPUT] += now - max(turned, begin)
            turned, made = now, made if kind == CREDIT else now
        begin = begin or now
    recorder.begin_ns, recorder.turned_ns, recorder.phases = begin, turned, phases
    arrays.made_ns = arrays.made_ns if inference.loads else made
    stack.extend(one for one in (around, place) if one != NOTHING)


def _trains(kind: int, now: int, reading: Any, recorder: Recorder, inference: StepInference) -> None:
    """A forward or backward pass begins."""
    if kind == BACKWARD:
        recorder.backward_begin_ns = now
        recorder.passes = 1 + (recorder.passes or 0)
        inference.batches.learn(recorder)
    elif not inference.loads:
        inference.batches.give(reading)
