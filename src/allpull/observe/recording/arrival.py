"""Time when the gradients of a backward pass are ready: the arrival of this rank at the all-reduce, and each bucket's.

For a few backward passes that reduce, a hook on each parameter learns which gradients come last, overall and in each
bucket of DDP; from then on only those parameters keep theirs, at half a microsecond each. Hooks follow
``requires_grad``: torch refuses a hook on a frozen parameter, so it is set once the parameter is trained. DDP's own
logger has the arrival too, but reading it costs 50 µs per step and lags one iteration (docs/decisions/002);
``tests/observe/recording/test_arrival.py`` compares the two. With a communication hook of the program a bucket is ready
when the hook calls its first collective: what it does before that is work of the rank, and no exchange yet.

On an accelerator the host only enqueues gradients. There these hooks call ``on_device``, which enqueues an event: torch
runs our hooks before that of DDP, which enqueues the reduction of the bucket.
"""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ...rundir.live.activity import ARRIVED_NS, Words, hidden_words

if TYPE_CHECKING:
    from .recorder import Recorder

LEARN_STEPS = 3  # DDP rebuilds its buckets after the first; two more confirm which parameters come last
MOST_BUCKETS = 64  # buckets of a network with more are not timed: each costs half a microsecond per step, or an event
MOST_LESSONS = 16  # times that the last parameters are learned anew, because those known so far were frozen

Ready = Optional[Tuple[int, ...]]
"""When the gradients of each bucket were ready, in the order of reduction, ns: the last one is the arrival. None: no
backward ran; a single moment: only the arrival is known.
"""

OnDevice = Callable[[int, int], None]
"""Called when a bucket that will be reduced was enqueued on the current stream: which one, and of how many. The last is
the arrival; of a single one, only that is known.
"""

Reduced = Optional[Sequence[Tuple[int, Tuple[int, ...]]]]
"""The networks that a backward pass reduced, by number, with when their gradients were ready. None: not known."""


class Arrival:
    """Times the gradients of one network; ``take`` them after each backward pass.

    ``sizes`` returns the sizes of the buckets in bytes, in the order of reduction, once DDP has rebuilt them;
    ``reduces``, whether the last backward pass reduced the gradients that it computed.
    """

    def __init__(
        self,
        module: Any,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sizes: Callable[[], Sequence[int]] = tuple,
        reduces: Callable[[], bool] = lambda: True,
    ) -> None:
        self.live: Words = hidden_words()  # of this rank: shows other processes that its gradients are ready
        self.on_device: Optional[OnDevice] = None
        self._buckets = 1  # on a device: how many of them are timed
        self._clock_ns = clock_ns
        self._sizes = sizes
        self._reduces = reduces
        self._ready_ns = 0
        self._moments: List[int] = []  # of the buckets before the last one
        self._order: Dict[Any, None] = {}  # parameters, in the order in which they became ready in this pass
        self._orders: List[List[Any]] = []
        self._lessons = 0
        self._lasts: List["weakref.ref[Any]"] = []  # parameters that keep a hook, because they may come last
        self.frozen: List[Tuple[Any, Callable[[Any], None]]] = []  # hooks that wait until their parameter is trained
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._parameters = [weakref.ref(parameter) for parameter in parameters]  # else they would outlive their network
        self._hooks: List[Any] = [one.register_post_accumulate_grad_hook(self._learned) for one in parameters]

    @property
    def is_alive(self) -> bool:
        """Whether the network still exists."""
        return bool(_alive(self._parameters))

    def take(self) -> Ready:
        """When the gradients of the last backward pass were ready; None where it reduced none.

        Raises:
            LookupError: it may have reduced gradients whose time is not known.
        """
        ready, self._ready_ns = self._ready_ns, 0
        if not ready:
            self._look_for_frozen()
            return None
        moments = self._moments
        if moments:
            self._moments = [0] * len(moments)
        if not self._reduces():
            self._order = {}
            return None
        if self._hooks:
            self._learn()
            return (ready,)
        if 0 in moments:
            return (ready,)
        return tuple(itertools.accumulate((*moments, ready), max))  # a bucket is reduced after those before it

    def handed_over(self, place: int, now: int, *, is_last: bool) -> None:
        """The bucket in ``place`` goes to the other ranks only ``now``, ns: a communication hook worked on it first."""
        if self.on_device is not None:
            return
        if not is_last and place < len(self._moments):
            self._moments[place] = now
        elif is_last and self._ready_ns:
            self._ready_ns = self.live[ARRIVED_NS] = now

    def thaw(self) -> None:
        """Set the hooks of parameters that are trained again."""
        waiting, self.frozen = self.frozen, []
        for parameter, hook in waiting:
            self._hook(parameter, hook)

    def _hook(self, parameter: Any, hook: Callable[[Any], None]) -> None:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(hook)  # it stays when the parameter is frozen later
        else:
            self.frozen.append((parameter, hook))

    def _learned(self, parameter: Any) -> None:
        self._order.pop(parameter, None)  # where gradients accumulate, the last time counts
        self._order[parameter] = None
        self._last_ready(parameter)

    def _last_ready(self, _: Any) -> None:
        self._ready_ns = self.live[ARRIVED_NS] = self._clock_ns()
        if self.on_device is not None:
            self._bucket_enqueued(self._buckets - 1, _)

    def _bucket_ready(self, place: int, _: Any) -> None:
        self._moments[place] = self._clock_ns()

    def _bucket_enqueued(self, place: int, _: Any) -> None:
        if self.on_device is not None and self._reduces():
            self.on_device(place, self._buckets)

    def _learn(self) -> None:
        self._orders.append(list(self._order))
        self._order = {}
        if len(self._orders) < LEARN_STEPS:
            return
        for hook in self._hooks:
            hook.remove()
        known = _alive(self._lasts)
        for parameter in _last_ones(self._orders):
            if not any(parameter is one for one in known):
                self._lasts.append(weakref.ref(parameter))
                self._hook(parameter, self._last_ready)
        if not self._lessons:
            self._learn_buckets()
        self._lessons += 1
        self._hooks, self._orders, self._sizes = [], [], tuple

    def _learn_buckets(self) -> None:
        order = self._orders[0]  # DDP forms buckets in the order of the first step
        kind = _device_of(order)
        on_host = kind == "cpu"
        if kind is None or not (on_host or self.on_device):
            return
        buckets = _cut(order, self._sizes())
        if on_host:
            self._moments = [0] * max(0, len(buckets) - 1)
        else:
            self._buckets = max(1, len(buckets))
        ready = self._bucket_ready if on_host else self._bucket_enqueued
        for place, bucket in enumerate(buckets[:-1]):
            for parameter in _last_ones([[one for one in order if one in bucket] for order in self._orders]):
                self._hook(parameter, functools.partial(ready, place))

    def _look_for_frozen(self) -> None:
        """Learn again which gradients come last, where all that may be last are frozen and others are not."""
        if self._hooks or not self._lessons or not self._reduces():
            return
        if any(one.requires_grad for one in _alive(self._lasts)):
            return
        trained = [one for one in _alive(self._parameters) if one.requires_grad]
        if trained and self._lessons < MOST_LESSONS:
            self._hooks = [one.register_post_accumulate_grad_hook(self._learned) for one in trained]
        if trained:
            raise LookupError("the parameters whose gradients came last are frozen")


def _alive(references: Iterable["weakref.ref[Any]"]) -> List[Any]:
    return [one for one in [reference() for reference in references] if one is not None]


def _last_ones(orders: Sequence[Sequence[Any]]) -> List[Any]:
    """The last of each order, each once."""
    return list(dict.fromkeys(order[-1] for order in orders if order))


def _device_of(parameters: Sequence[Any]) -> Optional[str]:
    """The type of the device that all ``parameters`` are on; None: of several."""
    devices = {one.device for one in parameters}
    return str(devices.pop().type) if len(devices) == 1 else None


def _cut(parameters: Sequence[Any], sizes: Sequence[int]) -> List[Dict[Any, None]]:
    """The parameters of consecutive buckets of these sizes; none if the sizes do not add up."""
    if not 1 < len(sizes) <= MOST_BUCKETS:
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
    """The arrivals of all networks of a rank; call it after each backward pass for what that ``Reduced``.

    ``failed`` is called with an error of our own, after which nothing is known any more.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self.any = False
        self._failed = failed
        self._made = 0
        self._clocks: List[Tuple[int, Arrival]] = []
        self._recorder: Optional[Recorder] = None

    def add(self, clock: Arrival) -> None:
        """Add the clock of another network; its number is how many were made before it."""
        self._clocks = [*((number, one) for number, one in self._clocks if one.is_alive), (self._made, clock)]
        self._made += 1
        self.any = True
        if self._recorder is not None:
            self.serve(self._recorder)

    def of(self, number: int) -> Optional[Arrival]:
        """The clock of the network with this number; None: it has none."""
        return next((clock for known, clock in self._clocks if known == number), None)

    def serve(self, recorder: Recorder) -> None:
        """Connect the clocks with ``recorder`` and its live state."""
        self._recorder = recorder
        for _, clock in self._clocks:
            clock.live = recorder.live
        recorder.arrival = self if self._clocks else None

    def begin(self) -> None:
        """A backward pass begins."""
        try:
            for _, clock in self._clocks:
                if clock.frozen:
                    clock.thaw()
        except Exception as error:  # noqa: BLE001  no error of ours may reach the program
            self._give_up(error)

    def __call__(self) -> Reduced:
        """What the last backward pass reduced."""
        reduced = []
        is_known = True
        try:
            for number, clock in self._clocks:
                try:
                    ready = clock.take()
                except LookupError:
                    is_known = False
                    continue
                if ready is not None:
                    reduced.append((number, ready))
        except Exception as error:  # noqa: BLE001  as above
            self._give_up(error)
            return None
        return reduced if is_known else None

    def _give_up(self, error: Exception) -> None:
        self._clocks = []
        self.any = False
        if self._recorder is not None:
            self._recorder.arrival = None
        self._failed(error)


def watch_ddp(attach: Callable[[Arrival], None]) -> None:
    """Call ``attach`` with the arrival clock of every DistributedDataParallel that is made from now on.

    Only the constructor is wrapped: no module hook, no change to the computation.
    """
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415  a program without torch has no DDP

    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        network = weakref.ref(self)
        sizes, reduces = functools.partial(_bucket_sizes, network), functools.partial(_reduces, network)
        attach(Arrival(self.module, sizes=sizes, reduces=reduces))

    DistributedDataParallel.__init__ = observed  # type: ignore[method-assign]  # wrapping is the point


def _reduces(network: Any) -> bool:
    """Whether the last forward pass with gradients prepared a reduction: not so within ``no_sync``."""
    ddp = network()
    return ddp is not None and bool(getattr(ddp, "require_forward_param_sync", ddp.require_backward_grad_sync))


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
