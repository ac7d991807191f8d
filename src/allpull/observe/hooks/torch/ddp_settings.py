"""Record the settings of each DistributedDataParallel, and whether any of its parameters was ever unused.

Which parameters are unused, DDP's own logger knows, of its first ten backward passes and of each hundredth after them.
Reading it takes 50 µs, so it is read as rarely, and only where DDP looks for unused parameters.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from ..inference.step_inference import StepInference
from ..safety import safely

FIRST = 4  # the step at which settings are recorded; DDP has then rebuilt its buckets
AGAIN = 100  # steps: DDP's logger samples as often (kDDPRuntimeLoggingSampleRate)


class Settings:
    """The settings of the networks that ``networks`` returns by number, written when they or their passes change."""

    def __init__(self, inference: StepInference, networks: Callable[[], Iterable[Tuple[int, Any]]]) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._networks = networks
        self._passes: Dict[int, Passes] = {}

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
        """The program ends: what the last passes showed."""
        recorder = self._inference.recorder
        if recorder is not None:
            for number, network in self._networks():
                if number in self._passes:
                    self._look(number, network, recorder.step_number, is_last=True)

    def _look(self, number: int, network: Any, step: int, *, is_last: bool = False) -> None:
        recorder, passes = self._inference.recorder, self._passes.setdefault(number, Passes())
        if recorder is None:
            return
        if network.find_unused_parameters:
            grew = passes.look(network._get_ddp_logging_data())
            if not (is_last or grew or passes.checked & (passes.checked - 1) == 0):
                return  # else it is written after 1, 2, 4, 8 … passes
        elif is_last:
            return
        now = time.monotonic_ns()
        event = {
            "kind": "data_parallel",
            "step": step,
            "network": number,
            "find_unused_parameters": bool(network.find_unused_parameters),
            "broadcast_buffers": bool(network.broadcast_buffers),
            "static_graph": bool(network.static_graph),
            "buffers_bytes": sum(buffer.numel() * buffer.element_size() for buffer in network.modules_buffers),
            "unused_bytes": passes.unused_bytes,
            "checked_passes": passes.checked,
            "t_ns": now,
        }
        recorder.journal.event(event, now)


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
