"""Derive phases and steps from the notes of a steady loop, as the recorder does from its calls.

A note is the time between two moments: the one phase that was open then, or a part of it. No two overlap.
"""

from __future__ import annotations

from operator import length_hint
from typing import TYPE_CHECKING, Any, List, Tuple

from ....rundir.live.activity import NOTHING, hidden_words
from ...recording.recorder import Recorder
from ...recording.step_line import BACKWARD, COLLECTIVE, FORWARD, INPUT, OPTIMIZER

if TYPE_CHECKING:
    from .step_inference import StepInference

PART, CALLED, ARRAY, ARRAY_ENDS, CREDIT = range(10, 15)
"""Kinds of notes besides phases that ended: a forward pass up to a collective, and single moments."""
OPENED = 20  # added to a phase that is still open
AFTER_INPUT = (FORWARD, PART, BACKWARD, OPENED + FORWARD, OPENED + BACKWARD)

Note = Tuple[int, int, int, Any]
"""Its kind, begin and end, and what else was read: the content of a batch, what was reduced, the queue."""
FIELDS = 4


def replay(notes: List[Any], recorder: Recorder, inference: StepInference) -> None:
    """Give ``recorder`` what ``notes`` hold, and remove them; those that arrive meanwhile are replayed too."""
    left = iter(notes)
    live, recorder.live = recorder.live, hidden_words()
    try:
        _derive(zip(left, left, left, left), recorder, inference)  # noqa: B905  Python 3.9 has no strict
    finally:
        del notes[: len(notes) - length_hint(left)]
        recorder.live = live


def _derive(notes: Any, recorder: Recorder, inference: StepInference) -> None:
    batches, arrays = inference.batches, inference.arrays
    spent, step_ns, turned, phases = recorder.spent, recorder.begin_ns, recorder.turned_ns, recorder.phases
    made = NOTHING if inference.loads else arrays.made_ns
    for kind, begin, end, reading in notes:
        if turned == made and kind in AFTER_INPUT:
            spent[INPUT] += begin - max(turned, step_ns)  # the program went on making its batch
        if kind > COLLECTIVE:
            recorder.turned_ns, recorder.phases = turned, phases
            _derive_other((kind, begin, end, reading), recorder, inference)
            turned, phases = recorder.turned_ns, recorder.phases
            made = NOTHING if inference.loads else arrays.made_ns
            continue
        spent[kind] += end - begin
        turned = end
        phases += 1
        if kind == INPUT:
            batches.now.waiting.append(reading)
        elif kind == FORWARD and reading:
            batches.give(reading)
        elif kind == BACKWARD:
            _learns(begin, recorder, inference)
            recorder.reduced(reading, end)
        elif kind == OPTIMIZER:
            if not recorder.passes:
                inference.learns_unseen(recorder)
            recorder.begin_ns, recorder.phases = step_ns, phases
            recorder.cut_at(end, reading)
            recorder.write_step()
            inference.steps_taken += 1
            spent, step_ns, phases = recorder.spent, end, 0
    recorder.begin_ns, recorder.turned_ns, recorder.phases = step_ns, turned, phases


def _derive_other(note: Note, recorder: Recorder, inference: StepInference) -> None:
    """A note of anything but a phase that ended."""
    kind, begin, end, reading = note
    spent, arrays, turned = recorder.spent, inference.arrays, recorder.turned_ns
    if kind == CALLED:
        recorder.collective(*reading)
        return
    recorder.turned_ns = end
    if kind == CREDIT:
        spent[FORWARD] += begin - max(turned, recorder.begin_ns)
    elif kind == ARRAY:
        recorder.phases += 1
        arrays.made_ns = begin
    elif kind == ARRAY_ENDS:
        if turned == arrays.made_ns:
            spent[INPUT] += begin - max(turned, recorder.begin_ns)
            arrays.made_ns = begin
        else:
            recorder.turned_ns = turned
    else:  # a forward pass up to a collective, or a phase that is still open
        spent[FORWARD] += end - begin
        if kind != PART:
            recorder.stack.append(kind - OPENED)
        if kind == OPENED + BACKWARD:
            _learns(begin, recorder, inference)
        elif kind in (PART, OPENED + FORWARD) and reading:
            inference.batches.give(reading)


def _learns(now: int, recorder: Recorder, inference: StepInference) -> None:
    """A backward pass began ``now``."""
    recorder.backward_begin_ns = now
    recorder.passes = 1 + (recorder.passes or 0)
    inference.batches.learn(recorder)
