"""Find the parts of a step on the host: input, forward, backward, optimizer, evaluation and checkpoint.

Torch itself annotates input, forward of DDP and FSDP, and optimizers; the program's own labels
(``record_function("backward")``) count too. Backward is where autograd runs its functions: a sequence of them without a
forward operation, a batch or an optimizer in between is one pass. Where nothing is labelled ``forward``, forward lasts
from the first operation whose gradient is computed later until the pass that computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from allpull.importers.kineto.calls import Call
from allpull.traces.intervals import Stretches, Times, of
from allpull.traces.trace import Trace

LAST_NS = 2**62  # later than any moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One backward pass, from its first function until its gradients were complete, and the calls that reduced them."""

    begin_ns: int
    end_ns: int
    reductions: tuple[Call, ...] = ()

    @property
    def done_ns(self) -> int | None:
        """When the last of its reductions had run; None: there was none, or an execution is missing."""
        ends = [call.ran_ns[1] if call.ran_ns else None for call in self.reductions]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """When the host was in each part, empty where the trace does not show it; ``sources``: the evidence used."""

    input: Stretches
    forward: Stretches
    passes: tuple[Pass, ...]
    optimizer: Stretches
    evaluation: Stretches
    checkpoint: Stretches
    sources: tuple[str, ...]

    @property
    def backward(self) -> Stretches:
        """When the host was in any backward pass."""
        return of((one.begin_ns, one.end_ns) for one in self.passes)


def parts_of(trace: Trace, calls: Sequence[Call]) -> Parts:
    """The parts of all steps in ``trace``, of which ``calls`` are the collectives."""
    given, optimizer, marked = trace.marked("input"), trace.marked("optimizer"), trace.marked("forward")
    begins = [one.begin_ns for one in trace.annotations if one.mark in ("step", "input", "forward", "optimizer")]
    marks = np.sort(np.frombuffer(trace.forward_marks, dtype=np.int64))
    forward_marks = marks[~trace.differentiates.cover(marks)]  # activations may be recomputed inside backward
    passes = _passes(trace, np.sort(np.concatenate([np.array(begins, dtype=np.int64), forward_marks])), calls)
    inferred = not marked and forward_marks.size > 0
    sources = {
        "annotations": bool(given or optimizer or marked),
        "autograd": bool(trace.differentiates),
        "operations with a gradient": inferred,
        "kernels": trace.on_device,
    }
    return Parts(
        input=given,
        forward=_before(passes, forward_marks) if inferred else marked,
        passes=passes,
        optimizer=optimizer,
        evaluation=trace.marked("evaluation"),
        checkpoint=trace.marked("checkpoint"),
        sources=tuple(name for name, is_used in sources.items() if is_used),
    )


def _passes(trace: Trace, separators: Times, calls: Sequence[Call]) -> tuple[Pass, ...]:
    """The backward passes: autograd's functions and the program's labels, split where another part began."""
    busy = trace.differentiates | trace.marked_backward
    if not busy:
        return ()
    group = np.searchsorted(separators, busy.begin, side="right")
    first = np.flatnonzero(np.diff(group, prepend=-1))
    last = np.append(first[1:], group.size) - 1
    begins, ends = busy.begin[first], busy.end[last]
    reductions: list[list[Call]] = [[] for _ in begins]
    for call in calls:
        if call.is_reduction:
            reductions[max(0, int(np.searchsorted(begins, call.called_ns, side="right")) - 1)].append(call)
    nexts = np.minimum(
        np.append(begins[1:], LAST_NS), np.append(separators, LAST_NS)[np.searchsorted(separators, ends)]
    )
    spans = zip(begins.tolist(), ends.tolist(), nexts.tolist(), reductions, strict=True)
    passes = (
        Pass(begin_ns=begin, end_ns=end, reductions=tuple(pass_reductions)) for begin, end, _, pass_reductions in spans
    )
    if trace.on_device:  # the host continues while the device waits
        return tuple(passes)
    copied = np.sort(trace.finishing.arrays()[1])
    return tuple(_until_done(one, next_ns, copied) for one, next_ns in zip(passes, nexts.tolist(), strict=True))


def _until_done(one: Pass, next_ns: int, copied_ns: Times) -> Pass:
    """The pass on a host: it lasts until its gradients are copied back, at most until ``next_ns``.

    The end of an annotation may be late, so torch's copying of the gradients takes precedence over it.
    """
    if not one.reductions:
        return one
    copied = copied_ns[np.searchsorted(copied_ns, one.end_ns) : np.searchsorted(copied_ns, next_ns, side="right")]
    done_ns = int(copied[-1]) if copied.size else min(one.done_ns or one.end_ns, next_ns)
    return replace(one, end_ns=max(one.end_ns, done_ns))


def _before(passes: Sequence[Pass], marks: Times) -> Stretches:
    """From the first forward operation after each pass until the next one."""
    spans = []
    since = 0
    for one in passes:
        place = int(np.searchsorted(marks, since))
        if place < marks.size and marks[place] < one.begin_ns:
            spans.append((int(marks[place]), one.begin_ns))
        since = one.end_ns
    return of(spans)
