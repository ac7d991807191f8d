"""Time when the gradients of a step are ready: this rank's arrival at the all-reduce, and bucket by bucket on the way.

A hook on each parameter for a few steps learns which ones come last, of all and of each of DDP's buckets; from then
on only those keep theirs, at half a microsecond each. DDP's own logger knows the arrival too, but reading it costs
50 µs a step and comes an iteration late (docs/decisions/002); ``tests/observe/recording/test_arrival.py`` compares the
two.
"""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from ...rundir.live.activity import ARRIVED_NS, Words, hidden_words

if TYPE_CHECKING:
    from .recorder import Recorder

LEARN_STEPS = 3  # DDP rebuilds its buckets after the first; two more confirm which parameters come last
MOST_BUCKETS = 64  # of a network with more, those are not told apart: each costs half a microsecond a step

Ready = Optional[Tuple[int, ...]]
"""When the gradients of each bucket were ready, in the order of reduction, ns: the last one is the arrival. None: no
backward ran; a single moment: buckets are not told apart.
"""


class Arrival:
    """Watches the parameters of one module; call it after each step for when they were ``Ready``.

    ``sizes`` gives the buckets' sizes in bytes, in the order of reduction, once DDP has settled on them.
    """

    def __init__(
        self,
        module: Any,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sizes: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self.live: Words = hidden_words()  # of this rank, where others can see that its gradients are ready
        self.beside: Optional[Callable[[], None]] = None  # what else is told when a gradient may be the last
        self._clock_ns = clock_ns
        self._sizes = sizes
        self._ready_ns = 0
        self._moments: List[int] = []  # of the buckets before the last one
        self._order: Dict[Any, None] = {}  # parameters, as they became ready in this step
        self._orders: List[List[Any]] = []
        self._hooks: Dict[Any, Any] = {
            parameter: parameter.register_post_accumulate_grad_hook(self._learned)
            for parameter in module.parameters()
            if parameter.requires_grad
        }

    def __call__(self) -> Ready:
        """When the gradients since the call before were ready."""
        ready, self._ready_ns = self._ready_ns, 0
        if not ready:
            return None
        if self._hooks:
            self._learn()
            return (ready,)
        moments, self._moments = self._moments, [0] * len(self._moments)
        if 0 in moments:
            return (ready,)
        return tuple(itertools.accumulate((*moments, ready), max))  # a bucket waits for those before it

    def _learned(self, parameter: Any) -> None:
        self._order.pop(parameter, None)  # where gradients accumulate, the last time counts
        self._order[parameter] = None
        self._last_ready(parameter)

    def _last_ready(self, _: Any) -> None:
        self._ready_ns = self.live[ARRIVED_NS] = self._clock_ns()
        if self.beside is not None:
            self.beside()

    def _bucket_ready(self, place: int, _: Any) -> None:
        self._moments[place] = self._clock_ns()

    def _learn(self) -> None:
        self._orders.append(list(self._order))
        self._order = {}
        if len(self._orders) < LEARN_STEPS:
            return
        for hook in self._hooks.values():
            hook.remove()
        for parameter in _last_ones(self._orders):
            parameter.register_post_accumulate_grad_hook(self._last_ready)
        buckets = _cut(self._orders[0], self._sizes())  # DDP cuts them in the order of the first step
        self._moments = [0] * max(0, len(buckets) - 1)
        for place, bucket in enumerate(buckets[:-1]):
            for parameter in _last_ones([[one for one in order if one in bucket] for order in self._orders]):
                parameter.register_post_accumulate_grad_hook(functools.partial(self._bucket_ready, place))
        self._hooks, self._orders, self._sizes = {}, [], tuple


def _last_ones(orders: Sequence[Sequence[Any]]) -> List[Any]:
    """The last of each order, each once."""
    return list(dict.fromkeys(order[-1] for order in orders if order))


def _cut(parameters: Sequence[Any], sizes: Sequence[int]) -> List[Dict[Any, None]]:
    """Which parameters are in buckets of these sizes, one after the other; none at all where they do not add up.

    Parameters of a device are left alone: the host only hears when their gradients were asked for.
    """
    if not 1 < len(sizes) <= MOST_BUCKETS or any(one.device.type != "cpu" for one in parameters):
        return []
    left = list(reversed(parameters))
    buckets: List[Dict[Any, None]] = []
    for size in sizes:
        bucket: Dict[Any, None] = {}
        filled = 0
        while left and filled < size:
            parameter = left.pop()
            filled += parameter.numel() * parameter.element_size()
            bucket[parameter] = None
        if filled != size:
            return []
        buckets.append(bucket)
    return [] if left else buckets


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

    def __call__(self) -> Ready:
        """When the gradients were ready; of several networks that were reduced, the last moment alone."""
        told = [ready for ready in [clock() for clock in self._clocks] if ready is not None]
        if len(told) > 1:
            return (max(ready[-1] for ready in told),)
        return told[0] if told else None


def watch_ddp(attach: Callable[[Arrival], None]) -> None:
    """Watch every DistributedDataParallel that is made from now on; ``attach`` is given its arrival clock.

    The constructor is wrapped, nothing else: no module hook, no change to what is computed.
    """
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415  a program without torch has no DDP

    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        attach(Arrival(self.module, sizes=functools.partial(_bucket_sizes, weakref.ref(self))))

    DistributedDataParallel.__init__ = observed  # type: ignore[method-assign]  # wrapping is the point


def _bucket_sizes(network: Any) -> List[int]:
    """Sizes of the buckets of the network that ``network`` refers to."""
    ddp = network()
    return [] if ddp is None else sizes_of(ddp._get_ddp_logging_data())


def sizes_of(told: Any) -> List[int]:
    """Sizes of the buckets in bytes, in the order of reduction, from what DDP's logger tells.

    >>> sizes_of({"bucket_sizes": "300", "rebuilt_bucket_sizes": "100, 200"})
    [100, 200]
    """
    text = told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or ""
    return [int(size) for size in text.split(",") if size.strip().isdigit()]
