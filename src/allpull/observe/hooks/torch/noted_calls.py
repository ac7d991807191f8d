"""The wrappers of what a loop calls in every step: each notes its call while calls are noted, and else has it followed.

After the work of a step the caches are cold, and what a wrapper costs is how much of our code and data it touches,
each piece for the first time: a call of a function of ours costs a microsecond or two, the readings and the note
together not much more. So each wrapper notes by itself, and calls nothing that it does not need in a steady step.
What ``calls`` holds is loaded before it is called: Python 3.11 looks up what a slot holds anew if both are one
expression.

A phase is ``open`` last of all where it begins, and no longer before it is noted: a signal handler may settle anywhere.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, Callable, Tuple

from ....rundir.live.activity import ENDED_NS, NOTHING, STEP
from ...recording.recorder import QUEUE_EVERY_NS
from ...recording.step_line import BACKWARD, FORWARD, INPUT, LATER, OPTIMIZER
from ..callers import callers
from ..inference.deferred import FULL, MOST_NOTES, Deferred

Hook = Callable[[Any, Any, Any], Any]


def fetching(calls: Deferred, take: Callable[[Any], Any], repeats: Callable[[int], None]) -> Callable[[Any], Any]:
    """``take`` of a loader's iterator, observed; ``repeats`` is called where it begins another pass."""
    content = calls.contents.of

    def observed(iterator: Any) -> Any:
        depth = 0
        if calls.open == NOTHING and id(iterator) == calls.iterator and get_ident() == calls.thread:
            clock_ns = calls.clock_ns
            calls.turned_ns = calls.live[INPUT] = clock_ns()
            calls.open = INPUT
        else:
            depth = calls.followed().fetch_begins(id(iterator))
        try:
            batch = take(iterator)
        except BaseException as error:
            if type(error) is StopIteration:
                set_over(iterator, True)
            calls.leave(depth)
            raise
        length = iterator._allpull_length
        if length and iterator._num_yielded > length and iterator._num_yielded % length == 1 % length:
            repeats(id(iterator))
        if depth or calls.open != INPUT:
            calls.followed().fetched(depth, batch, iterator)
            return batch
        clock_ns, note = calls.clock_ns, calls.note
        now = calls.live[ENDED_NS] = clock_ns()
        calls.open = NOTHING
        note((INPUT, calls.turned_ns, now, content(batch, iterator)))
        if len(calls.notes) >= MOST_NOTES:
            calls.repeat()
        return batch

    return observed


def set_over(iterator: Any, is_over: bool) -> None:
    """Note at a loader's ``iterator`` whether it has given all that it has."""
    try:
        iterator._allpull_is_over = is_over
    except Exception:  # noqa: BLE001, S110  a class of the program's own: then it is never over
        pass


def running(
    calls: Deferred,
    network: Callable[[], Any],
    bare: Callable[[], Any],
    compiled: Any,
    begins: Callable[[Any, Any, bool], int],
    *,
    is_trained: bool = True,
) -> Callable[..., Any]:
    """A call of the ``network`` that this weak reference refers to, observed; ``begins`` follows one.

    ``bare`` refers to the same without a wrapper, such as DDP, which Lightning leaves in evaluation mode. One that no
    optimizer trains is asked for a step between the fetch of its batch and its backward pass. A copy that has all
    attributes of the network (`higher`, DataParallel) is called so, too, and run itself.
    """
    from torch import is_grad_enabled, nn  # noqa: PLC0415  this runs after torch was imported
    from torch.compiler import is_dynamo_compiling  # noqa: PLC0415

    called, frame_of = getattr(nn.Module._wrapped_call_impl, "__code__", None), sys._getframe

    def observed(*args: Any, **kwargs: Any) -> Any:
        caller = None if is_dynamo_compiling() else frame_of(1)
        module = caller.f_locals["self"] if caller is not None and caller.f_code is called else network()
        call = compiled or module._call_impl
        if calls.in_network or caller is None or not (is_trained or calls.is_own_thread):
            return call(*args, **kwargs)
        inner = bare() if module is network() else None  # None: the program has replaced it
        learns = is_trained and is_grad_enabled() and (module if inner is None else inner).training
        calls.in_network = True
        if learns:
            calls.has_learned = True
        depth = 0
        is_of_step = learns or (not is_trained and calls.has_batch)
        if is_of_step and calls.open == NOTHING and get_ident() == calls.thread:
            calls.reading = None if calls.loads else calls.contents.of(args or kwargs)
            clock_ns = calls.clock_ns
            now = calls.live[FORWARD] = clock_ns()
            if calls.in_parts and calls.saw_forward and not calls.loads:
                calls.credit(now)
            calls.saw_forward = calls.saw_forward or is_trained
            calls.made_ns = 0
            calls.turned_ns = now
            calls.open = FORWARD
        else:
            depth = begins(module, args or kwargs, learns)
        try:
            return call(*args, **kwargs)
        finally:
            calls.in_network = False
            if depth or calls.open != FORWARD:
                calls.leave(depth)
            else:
                clock_ns, note = calls.clock_ns, calls.note
                now = calls.live[ENDED_NS] = clock_ns()
                calls.open = NOTHING
                note((FORWARD, calls.turned_ns, now, calls.reading))
                if len(calls.notes) >= MOST_NOTES:
                    calls.repeat()

    return observed


def is_within_function() -> bool:
    """Whether we are called by a `torch.autograd.Function`, which runs its forward pass without gradients."""
    from torch.autograd import Function  # noqa: PLC0415  this runs after torch was imported

    apply = getattr(getattr(Function.apply, "__func__", None), "__code__", None)  # None: something has replaced it
    return any(frame.f_code is apply for frame in callers())


def learning(calls: Deferred, backward: Callable[..., None], otherwise: Callable[[Any], None]) -> Callable[..., None]:
    """``backward``, observed; ``otherwise`` is called with its first argument while no optimizer was seen to step."""

    def observed(*args: Any, **kwargs: Any) -> None:
        depth = 0
        if calls.open == NOTHING and calls.saw_forward and get_ident() == calls.thread:
            if calls.arrival is not None:
                calls.arrives()
            clock_ns = calls.clock_ns
            now = calls.live[BACKWARD] = clock_ns()
            if calls.in_parts:
                calls.credit(now)
            calls.made_ns = 0
            calls.turned_ns = now
            calls.open = BACKWARD
        else:
            depth = calls.followed().backward_begins()
        try:
            backward(*args, **kwargs)
        finally:
            if depth or calls.open != BACKWARD:
                calls.followed().backward_ends(depth)
            else:
                clock_ns, note = calls.clock_ns, calls.note
                now = calls.live[ENDED_NS] = clock_ns()
                calls.open = NOTHING
                note((BACKWARD, calls.turned_ns, now, () if calls.arrival is None else calls.arrival()))
                if len(calls.notes) >= MOST_NOTES:
                    calls.repeat()
        if not calls.is_on:
            otherwise(args[0] if args else kwargs.get("tensors"))

    return observed


def stepping(calls: Deferred, with_closure: Callable[[Any, Any], Any]) -> Tuple[Hook, Hook]:
    """What is called before and after an optimizer's ``step``; ``with_closure`` observes the closure in arguments."""
    from torch.compiler import is_dynamo_compiling  # noqa: PLC0415  this runs after torch was imported

    def begins(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return None
        if calls.open == NOTHING and calls.saw_forward and not calls.made_ns and get_ident() == calls.thread:
            calls.optimizer = id(optimizer)
            clock_ns = calls.clock_ns
            calls.turned_ns = calls.live[OPTIMIZER] = clock_ns()
            calls.open = OPTIMIZER
        else:
            calls.followed().optimizer_begins(id(optimizer))
        return with_closure(args, kwargs) if kwargs or len(args) > 1 else None

    def ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_dynamo_compiling():
            return
        if calls.open != OPTIMIZER or id(optimizer) != calls.optimizer or calls.boundary.is_awaited:
            calls.followed().optimizer_ends(id(optimizer))
            return
        clock_ns, note = calls.clock_ns, calls.note
        now = calls.live[ENDED_NS] = clock_ns()
        calls.step = calls.live[STEP] = calls.step + 1
        calls.saw_forward = False
        calls.open = NOTHING
        if now >= calls.due_ns or now - calls.ended_ns >= QUEUE_EVERY_NS or len(calls.notes) >= FULL:
            calls.steps(now)
        else:
            calls.ended_ns = now
            note((OPTIMIZER, calls.turned_ns, now, LATER))

    return begins, ends
