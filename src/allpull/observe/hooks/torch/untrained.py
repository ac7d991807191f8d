"""Find the networks that a program asks and no optimizer trains: teachers, reference models, measures of a loss.

Such a network was put into ``eval()`` or frozen as a whole, and is neither a part of a network that is trained nor
holds one. That is known once there is an optimizer; modules from before wait for it.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Sequence

from ....rundir.live.activity import NOTHING
from ..inference.phases import NOT_SEEN
from ..inference.step_inference import StepInference
from ..safety import safely


class Untrained:
    """The untrained networks of this process; ``wrap`` observes calls of one, and of parts of it that may be called."""

    def __init__(self, inference: StepInference, wrap: Callable[[Any], None]) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._wrap = wrap
        self._waiting: "weakref.WeakSet[Any]" = weakref.WeakSet()  # it is not known yet whether they are trained
        self._judged: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._parts: "weakref.WeakSet[Any]" = weakref.WeakSet()  # of the networks that are trained
        self._trained = 0  # of which these are the parts
        self._networks: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._asked: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def __contains__(self, module: Any) -> bool:
        return module in self._networks

    def is_asked(self, module: Any) -> bool:
        """Whether the program asks ``module``, or a part of it, in its steps."""
        return any(part in self._asked for part in module.modules())

    @safely("untrained networks")
    def may_be(self, module: Any, trained: Sequence[Any]) -> None:
        """``module`` was put into ``eval()`` or frozen; ``trained``: the networks that are known so far."""
        if module in self._judged or module in self._parts:
            return
        self._waiting.add(module)
        if self._inference.optimizers:
            self.judge(trained)

    @safely("untrained networks")
    def judge(self, trained: Sequence[Any]) -> None:
        """There is an optimizer: ``trained`` are the networks that are trained."""
        if not self._waiting:
            return
        if len(trained) != self._trained:
            self._trained = len(trained)
            self._parts.update(part for network in trained for part in network.modules())
        roots = {id(root) for root in trained}
        known = {id(part) for network in self._networks for part in network.modules()}
        waiting = list(self._waiting)
        self._waiting.clear()
        for module in sorted(waiting, key=lambda one: -sum(1 for _ in one.modules())):  # what holds others first
            self._judged.add(module)
            parts = {id(part) for part in module.modules()}
            is_part = module in self._parts or id(module) in known
            if not (is_part or parts & roots) and next(module.parameters(), None) is not None:
                self._networks.add(module)
                known |= parts
                self._wrap(module)

    @safely("untrained networks", NOT_SEEN)
    def follow(self, module: Any, _inputs: Any, _learns: bool) -> int:
        """A call of ``module`` begins that is not noted; returns its depth."""
        calls, inference = self._inference.deferred, self._inference
        if calls.is_on and calls.open != NOTHING:
            return NOT_SEEN  # a part of what is open, such as a data set that computes features
        depth = inference.asked_begins()
        if not depth and inference.batches.unlearned(with_now=True):
            self._asked.add(module)
        return depth
