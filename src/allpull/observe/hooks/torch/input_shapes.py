"""Count the shapes of input that are new to cuDNN, where it tries all algorithms for each (``cudnn.benchmark``).

Nothing is counted where that is off, no device is in use, or no network has convolutions. Batches of one shape cost a
set look-up per forward pass.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Iterable, Set, Tuple

from ..inference.step_inference import StepInference
from ..safety import safely
from .networks import Networks

FIRST = 4  # the step from which shapes are counted: the first ones are new anyway
AGAIN = 32  # steps between two looks at the count
MOST = 1024  # shapes


class InputShapes:
    """The shapes that the networks of this process met."""

    def __init__(self, inference: StepInference, networks: Networks) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._networks = networks
        self._shapes: Set[Tuple[int, ...]] = set()
        self._written = -1

    @safely("input shapes")
    def at_step(self, step: int) -> None:
        """Step ``step`` begins."""
        if step < FIRST:
            return
        if self._written < 0:
            torch: Any = sys.modules["torch"]
            if not (torch.backends.cudnn.benchmark and torch.cuda.is_initialized() and self._networks.convolves()):
                self._inference.boundary.remove(self.at_step)
                return
            self._networks.see_inputs = self.see
        if self._written < 0 or step % AGAIN == 0:
            self._write(step)

    @safely("input shapes")
    def finish(self) -> None:
        """The program ends."""
        recorder = self._inference.recorder
        if recorder is not None and self._written >= 0:
            self._write(recorder.step_number)

    @safely("input shapes")
    def see(self, inputs: Iterable[Any]) -> None:
        """The network runs on ``inputs``: the first tensor counts."""
        for one in inputs:
            shape = getattr(one, "shape", None)
            if shape is not None:
                if len(self._shapes) < MOST:
                    self._shapes.add(tuple(shape))
                return

    def _write(self, step: int) -> None:
        recorder, shapes = self._inference.recorder, len(self._shapes)
        if recorder is None or shapes == self._written:
            return
        self._written = shapes
        now = time.monotonic_ns()
        event = {"kind": "input_shapes", "step": step, "shapes": shapes, "benchmark": True, "t_ns": now}
        recorder.journal.event(event, now)
