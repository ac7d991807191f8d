"""Digest the first batches that a rank trains on: ranks whose digests are all equal train on the same samples.

Ranks exchange nothing for it: each writes its own digests, and the reader of the run compares them. Only what is in the
memory of the host is looked at, and of large tensors only elements at equal distances: it takes a fraction of a
millisecond per batch, in steps that are warm-up anyway.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Iterator, List, Optional
from zlib import crc32

from ..digests import DIGITS, digests, in_memory_order
from ..safety import safely
from .batch_size import DEEPEST, MOST_PARTS

if TYPE_CHECKING:
    from .step_inference import StepInference

ENOUGH = 4  # digests; of workers that may repeat each other's batches, two of each
MOST = 125  # of them in an event
LAST_STEP = 16  # that is looked at, where batches of fewer have any
MOST_ELEMENTS = 4096  # of a tensor


class FirstBatches:
    """The digests of the first batches of this rank, written once there are enough of them."""

    def __init__(self, inference: StepInference) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        inference.batches.digest = digest_of

    @safely("first batches")
    def at_step(self, step: int) -> None:
        """Step ``step`` begins."""
        if len(self._found()) >= self._enough or step >= LAST_STEP:
            self._write()

    @safely("first batches")
    def finish(self) -> None:
        """The program ends."""
        self._write()

    @property
    def _enough(self) -> int:
        return min(max(ENOUGH, 2 * (self._inference.batches.iterable_workers or 0)), MOST)

    def _found(self) -> List[str]:
        return [one for one in self._inference.batches.learned_from if one]

    def _write(self) -> None:
        inference, recorder = self._inference, self._inference.recorder
        if inference.batches.digest is None:
            return
        inference.batches.digest = None
        inference.boundary.remove(self.at_step)
        found, workers = "".join(self._found()[: self._enough]), inference.batches.iterable_workers
        if recorder is not None and found:
            now = time.monotonic_ns()
            event = {"kind": "first_batches", "digests": found, "iterable_workers": workers, "t_ns": now}
            recorder.journal.event(event, now)


def digest_of(batch: Any) -> Optional[str]:
    """The digest of a batch of any structure, by its tensors and texts; None: it has none, or cannot be looked at."""
    try:
        parts = list(_parts(batch, DEEPEST))
    except Exception:  # noqa: BLE001  whatever the program calls a batch
        return None
    return f"{crc32(''.join(parts).encode()):0{DIGITS}x}" if parts else None


def _parts(batch: Any, deepest: int) -> Iterator[str]:
    """A digest of each tensor of the host in ``batch``, and each text."""
    torch: Any = sys.modules["torch"]
    if isinstance(batch, torch.Tensor):
        if batch.device.type == "cpu" and batch.layout is torch.strided and batch.numel():
            flat = in_memory_order(batch.detach())
            yield digests([flat[:: 1 + (flat.numel() - 1) // MOST_ELEMENTS]])
    elif isinstance(batch, (str, bytes)):
        yield repr(batch)
    elif deepest:
        for part in _members(batch)[:MOST_PARTS]:
            yield from _parts(part, deepest - 1)


def _members(batch: Any) -> Any:
    """What a batch that is neither a tensor nor a text consists of."""
    if isinstance(batch, (list, tuple)):
        return batch
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(vars(batch).values()) if hasattr(batch, "__dict__") and not callable(batch) else ()
