"""Time when the gradients of a step are ready: the arrival of this rank at the all-reduce, and that of each bucket.

For a few steps a hook on each parameter learns which gradients come last, overall and in each bucket of DDP; from then
on only those parameters keep theirs, at half a microsecond each. DDP's own logger has the arrival too, but reading it
costs 50 µs per step and lags one iteration (docs/decisions/002); ``tests/observe/recording/test_arrival.py`` compares
the two.
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
MOST_BUCKETS = 64  # buckets of a network with more are not timed: each costs half a microsecond per step

Ready = Optional[Tuple[int, ...]]
"""When the gradients of each bucket were ready, in the order of reduction, ns: the last one is the arrival. None: no
backward ran; a single moment: only the arrival is known.
"""


class Arrival:
    """Times the gradients of one module; call it after each step for when they were ``Ready``.

    ``sizes`` returns the sizes of the buckets in bytes, in the order of reduction, once DDP has rebuilt them.
    """

    def __init__(
        self,
        module: Any,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sizes: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self.live: Words = hidden_words()  # of this rank: shows other processes that its gradients are ready
        self.also_call: Optional[Callable[[], None]] = None  # called too when a gradient that may be the last is ready
        self._clock_ns = clock_ns
        self._sizes = sizes
        self._ready_ns = 0
        self._moments: List[int] = []  # of the buckets before the last one
        self._order: Dict[Any, None] = {}  # parameters, in the order in which they became ready in this step
        self._orders: List[List[Any]] = []
        self._hooks: Dict[Any, Any] = {
            parameter: parameter.register_post_accumulate_grad_hook(self._learned)
            for parameter in module.parameters()
            if parameter.requires_grad
        }

    def __call__(self) -> Ready:
        """When the gradients since the last call were ready."""
        ready, self._ready_ns = self._ready_ns, 0
        if not ready:
            return None
        if self._hooks:
            self._learn()
            return (ready,)
        moments, self._moments = self._moments, [0] * len(self._moments)
        if 0 in moments:
            return (ready,)
        return tuple(itertools.accumulate((*moments, ready), max))  # a bucket is reduced after those before it

    def _learned(self, parameter: Any) -> None:
        self._order.pop(parameter, None)  # where gradients accumulate, the last time counts
        self._order[parameter] = None
        self._last_ready(parameter)

    def _last_ready(self, _: Any) -> None:
        self._ready_ns = self.live[ARRIVED_NS] = self._clock_ns()
        if self.also_call is not None:
            self.also_call()

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
        buckets = _cut(self._orders[0], self._sizes())  # DDP forms them in the order of the first step
        self._moments = [0] * max(0, len(buckets) - 1)
        for place, bucket in enumerate(buckets[:-1]):
            for parameter in _last_ones([[one for one in order if one in bucket] for order in self._orders]):
                parameter.register_post_accumulate_grad_hook(functools.partial(self._bucket_ready, place))
        self._hooks, self._orders, self._sizes = {}, [], tuple


def _last_ones(orders: Sequence[Sequence[Any]]) -> List[Any]:
    """The last of each order, each once."""
    return list(dict.fromkeys(order[-1] for order in orders if order))


def _cut(parameters: Sequence[Any], sizes: Sequence[int]) -> List[Dict[Any, None]]:
    """The parameters of consecutive buckets of these sizes; none if the sizes do not add up.

    Parameters on a device are left out: the host only knows when their gradients were enqueued.
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
    """The arrivals of all networks of a rank; call it after each step for when the last gradient was ready."""

    def __init__(self) -> None:
        self.any = False
        self._clocks: List[Arrival] = []

    def add(self, clock: Arrival) -> None:
        """Add the clock of another network."""
        self._clocks.append(clock)
        self.any = True

    def serve(self, recorder: Recorder) -> None:
        """Connect the clocks with ``recorder`` and its live state."""
        for clock in self._clocks:
            clock.live = recorder.live
        recorder.arrival = self if self._clocks else None

    def __call__(self) -> Ready:
        """When the gradients were ready; if several networks were reduced, only the last moment."""
        known = [ready for ready in [clock() for clock in self._clocks] if ready is not None]
        if len(known) > 1:
            return (max(ready[-1] for ready in known),)
        return known[0] if known else None


def watch_ddp(attach: Callable[[Arrival], None]) -> None:
    """Call ``attach`` with the arrival clock of every DistributedDataParallel that is made from now on.

    Only the constructor is wrapped: no module hook, no change to the computation.
    """
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415  a program without torch has no DDP

    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        attach(Arrival(self.module, sizes=functools.partial(_bucket_sizes, weakref.ref(self))))

    DistributedDataParallel.__init__ = observed  # type: ignore[method-assign]  # wrapping is the point


def _bucket_sizes(network: Any) -> List[int]:
    """Bucket sizes of the network that the weak reference ``network`` refers to."""
    ddp = network()
    return [] if ddp is None else sizes_of(ddp._get_ddp_logging_data())


def sizes_of(logging_data: Any) -> List[int]:
    """Bucket sizes in bytes, in the order of reduction, from the data of DDP's logger.

    >>> sizes_of({"bucket_sizes": "300", "rebuilt_bucket_sizes": "100, 200"})
    [100, 200]
    """
    text = logging_data.get("rebuilt_bucket_sizes") or logging_data.get("bucket_sizes") or ""
    return [int(size) for size in text.split(",") if size.strip().isdigit()]
