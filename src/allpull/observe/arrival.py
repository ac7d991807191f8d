"""Time when the last gradient of a step is ready: this rank's arrival at the all-reduce.

A hook on each parameter for a few steps learns which ones come last; from then on only those keep theirs, at
half a microsecond a step. DDP's own logger knows the moment too, but reading it costs 50 µs a step and comes an
iteration late (docs/decisions/002); ``tests/observe/test_arrival.py`` holds this clock against it.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from ..rundir.live import ARRIVED_NS, Words, hidden_words

if TYPE_CHECKING:
    from .recorder import Recorder

LEARN_STEPS = 3  # DDP rebuilds its buckets after the first; two more confirm which parameters come last


class Arrival:
    """Watches the parameters of one module; call it after each step for the time, in ns, or None."""

    def __init__(self, module: Any, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.live: Words = hidden_words()  # of this rank, where others can see that its gradients are ready
        self.beside: Optional[Callable[[], None]] = None  # what else is told when a gradient may be the last
        self._clock_ns = clock_ns
        self._ready_ns = 0
        self._latest: Any = None
        self._last_ones: List[Any] = []
        self._learning = LEARN_STEPS
        self._hooks: Dict[Any, Any] = {
            parameter: parameter.register_post_accumulate_grad_hook(self._ready)
            for parameter in module.parameters()
            if parameter.requires_grad
        }

    def _ready(self, parameter: Any) -> None:
        self._ready_ns = self.live[ARRIVED_NS] = self._clock_ns()
        self._latest = parameter
        if self.beside is not None:
            self.beside()

    def __call__(self) -> Optional[int]:
        """When the last gradient since the call before was ready, in ns of the clock; None: no backward ran."""
        ready, self._ready_ns = self._ready_ns, 0
        if not ready:
            return None
        if self._learning:
            self._learn()
        return ready

    def _learn(self) -> None:
        self._learning -= 1
        self._last_ones.append(self._latest)
        if self._learning == 0:
            for parameter, hook in self._hooks.items():
                if not any(parameter is last for last in self._last_ones):
                    hook.remove()
            self._hooks = {}
            self._last_ones = []


class Arrivals:
    """Clocks of all networks of a rank; called after each step, when the last gradient of any of them was ready."""

    def __init__(self) -> None:
        self.any = False
        self._clocks: List[Arrival] = []

    def add(self, clock: Arrival) -> None:
        """Another network has one."""
        self._clocks.append(clock)
        self.any = True

    def serve(self, recorder: Recorder) -> None:
        """Let ``recorder`` know arrivals, and those who look at it."""
        for clock in self._clocks:
            clock.live = recorder.live
        recorder.arrival = self if self._clocks else None

    def __call__(self) -> Optional[int]:
        """The last of the moments, in ns; None: no backward ran."""
        latest = None
        for clock in self._clocks:
            moment = clock()
            if moment is not None and (latest is None or moment > latest):
                latest = moment
        return latest


def watch_ddp(attach: Callable[[Arrival], None]) -> None:
    """Watch every DistributedDataParallel that is made from now on; ``attach`` is given its arrival clock.

    The constructor is wrapped, nothing else: no module hook, no change to what is computed.
    """
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415  a program without torch has no DDP

    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        attach(Arrival(self.module))

    DistributedDataParallel.__init__ = observed  # type: ignore[method-assign]  # wrapping is the point
