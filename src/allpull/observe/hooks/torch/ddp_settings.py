"""Record the settings of each DistributedDataParallel, its communication hook, and whether parameters were unused.

Which parameters are unused, DDP's own logger knows, of its first ten backward passes and of each hundredth after them.
Reading it takes 50 µs, so it is read as rarely, and only where DDP looks for unused parameters.
"""

from __future__ import annotations

import functools
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from ...recording.arrival import Arrival
from ..inference.step_inference import StepInference
from ..safety import safely
from .collectives import Collectives

FIRST = 4  # the step at which settings are recorded; DDP has then rebuilt its buckets
LONGEST_NAME = 200  # characters
AGAIN = 100  # steps: DDP's logger samples as often (kDDPRuntimeLoggingSampleRate)


class Settings:
    """The settings of the networks that ``networks`` returns by number, written when they or their passes change."""

    def __init__(
        self,
        inference: StepInference,
        networks: Callable[[], Iterable[Tuple[int, Any]]],
        collectives: Collectives,
    ) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._networks = networks
        self._collectives = collectives
        self._passes: Dict[int, Passes] = {}
        self._hooks: "weakref.WeakKeyDictionary[Any, Spent]" = weakref.WeakKeyDictionary()  # by reducer
        self._written: Dict[int, Tuple[Dict[str, Any], Spent]] = {}  # of networks with a hook, which may be gone

    def watch_hooks(self) -> None:
        """Time communication hooks; called once, after torch was imported.

        The function is wrapped that hands a hook to the reducer: the program sees its own hook everywhere else.
        """
        from torch import distributed  # noqa: PLC0415  this runs after torch was imported

        dist: Any = distributed
        register = dist._register_comm_hook

        @functools.wraps(register)
        def observed(reducer: Any, state: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
            spent = Spent(str(getattr(hook, "__qualname__", type(hook).__name__))[:LONGEST_NAME])
            timed = Hook(hook, spent, self._begins, functools.partial(self._returned, weakref.ref(reducer), spent))
            answer = register(reducer, state, timed, *args, **kwargs)
            self._registered(reducer, spent)
            return answer

        dist._register_comm_hook = observed

    @safely("DDP settings")
    def _registered(self, reducer: Any, spent: "Spent") -> None:
        self._hooks[reducer] = spent

    def _begins(self) -> None:
        self._collectives.first_ns, self._collectives.in_hook = 0, True

    @safely("DDP settings")
    def _returned(self, reducer: Any, spent: "Spent", bucket: Any) -> None:
        """The hook of ``reducer`` has handed over ``bucket``, when it called its first collective."""
        self._collectives.in_hook = False
        spent.step = self._inference.step_number
        first_ns, owner = self._collectives.first_ns, reducer()
        if first_ns:
            number = next((number for number, network in self._networks() if network.reducer is owner), None)
            arrival: Optional[Arrival] = None if number is None else self._inference.arrivals.of(number)
            if arrival is not None:
                arrival.handed_over(bucket.index(), first_ns, is_last=bucket.is_last())

    @safely("DDP settings")
    def at_step(self, step: int) -> None:
        """Step ``step`` begins."""
        if step % AGAIN != FIRST:
            return
        known = list(self._networks())
        for number, network in known:
            self._look(number, network, step)
        if not any(network.find_unused_parameters for _, network in known):
            self._inference.boundary.remove(self.at_step)

    @safely("DDP settings")
    def finish(self) -> None:
        """The program ends: what the last passes showed, and what hooks took until their last call."""
        recorder, now = self._inference.recorder, time.monotonic_ns()
        if recorder is None:
            return
        for number, network in self._networks():
            is_new = network.reducer in self._hooks and number not in self._written  # with a hook since the last look
            if is_new or (number in self._passes and network.find_unused_parameters):
                self._look(number, network, recorder.step_number, is_last=True)
                self._written.pop(number, None)
        for event, spent in self._written.values():
            last = {**event, **spent.facts(), "step": spent.step + 1, "t_ns": now}
            recorder.journal.event(last, now)

    def _look(self, number: int, network: Any, step: int, *, is_last: bool = False) -> None:
        recorder, passes = self._inference.recorder, self._passes.setdefault(number, Passes())
        spent = self._hooks.get(network.reducer)
        if recorder is None:
            return
        if network.find_unused_parameters:
            grew = passes.look(network._get_ddp_logging_data())
            if not (is_last or grew or passes.checked & (passes.checked - 1) == 0):
                return  # else it is written after 1, 2, 4, 8 … passes
        now = time.monotonic_ns()
        event = {
            "kind": "data_parallel",
            "step": step,
            "network": number,
            "find_unused_parameters": bool(network.find_unused_parameters),
            "broadcast_buffers": bool(network.broadcast_buffers),
            "static_graph": bool(network.static_graph),
            "group_ranks": network.process_group.size(),
            "buffers_bytes": sum(buffer.numel() * buffer.element_size() for buffer in network.modules_buffers),
            "unused_bytes": passes.unused_bytes,
            "checked_passes": passes.checked,
            **({} if spent is None else spent.facts()),
            "t_ns": now,
        }
        recorder.journal.event(event, now)
        if spent is not None:
            self._written[number] = event, spent


class Spent:
    """How often a communication hook was called, what that took, and the ``step`` of the last call."""

    __slots__ = ("calls", "name", "ns", "step")

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = self.ns = self.step = 0

    def facts(self) -> Dict[str, Any]:
        """Its fields of a ``data_parallel`` event."""
        return {"hook": self.name, "hook_calls": self.calls, "hook_ns": self.ns}


class Hook:
    """A communication hook of the program; ``spent`` outlives it and the network."""

    __slots__ = ("_begins", "_hook", "_returned", "_spent")

    def __init__(
        self,
        hook: Callable[[Any, Any], Any],
        spent: Spent,
        begins: Callable[[], None],
        returned: Callable[[Any], None],
    ) -> None:
        self._hook, self._spent = hook, spent
        self._begins, self._returned = begins, returned

    def __call__(self, state: Any, bucket: Any) -> Any:
        """Reduce ``bucket`` as the program's hook does."""
        self._begins()
        begin = time.monotonic_ns()
        try:
            return self._hook(state, bucket)
        finally:
            self._spent.ns += time.monotonic_ns() - begin
            self._spent.calls += 1
            self._returned(bucket)


class Passes:
    """The backward passes of a network that DDP's logger has shown, and the most parameters unused in one of them."""

    def __init__(self) -> None:
        self.checked = 0
        self.unused_bytes: Optional[int] = None
        self._last = -1

    def look(self, logging_data: Dict[str, Any]) -> bool:
        """Count the pass that ``logging_data`` is of, if it is another one; whether more parameters were unused."""
        iteration, unused = logging_data.get("iteration"), logging_data.get("unused_parameter_size")
        if iteration is None or unused is None or iteration == self._last:
            return False
        before, self._last = self.unused_bytes, iteration
        self.checked += 1
        self.unused_bytes = max(before or 0, int(unused))
        return before is None or self.unused_bytes > before
