"""Record a digest of each parameter and buffer now and then, so that replicas that differ are found afterwards.

Ranks exchange nothing for it: each writes its own digests, and the reader of the run compares those of one step. A
digest depends on the bits of a tensor alone, not on its layout in memory. Weights that are sharded over ranks are not
replicas, and are left out.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, List, Tuple

from ....rundir.job_file import JobFile
from ..digests import digests
from ..inference.step_inference import StepInference
from ..safety import safely
from .networks import Networks


def checked_every(job: JobFile) -> int:
    """Steps between two digests, as requested by ``job``; 0: none."""
    if job.command is not None:
        return job.watch.check_replicas
    parts = (job.spec.get("train"), job.spec.get("watch"))
    return max((int(part.get("check_replicas") or 0) for part in parts if isinstance(part, dict)), default=0)


class Replicas:
    """The replicas of the networks of this process, digested when each step begins that ``every`` divides."""

    def __init__(self, inference: StepInference, networks: Networks, every: int) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._networks = networks
        self._every = every
        self._named: Tuple[List[str], List[str], int] = ([], [], -1)

    @safely("replicas")
    def at_step(self, step: int) -> None:
        """Step ``step`` begins."""
        if step and step % self._every == 0:
            self._record(step)

    @safely("replicas")
    def finish(self) -> None:
        """The program ends: its last state counts too."""
        recorder = self._inference.recorder
        if recorder is not None and recorder.step_number % self._every:
            self._record(recorder.step_number)

    def _record(self, step: int) -> None:
        recorder = self._inference.recorder
        if recorder is None:
            return
        parameters, buffers, sharded = self._tensors()
        if not (parameters or buffers or sharded):
            return  # no network is known yet, or none lives any more
        named = (list(parameters), list(buffers), sharded)
        if named != self._named:
            self._named = named
            now = time.monotonic_ns()
            names = {"parameters": named[0], "buffers": named[1], "sharded": sharded}
            recorder.journal.event({"kind": "replica_tensors", "step": step, **names, "t_ns": now}, now)
        written = {"parameters": digests(parameters.values()), "buffers": digests(buffers.values())}
        now = time.monotonic_ns()
        recorder.journal.event({"kind": "replica", "step": step, **written, "t_ns": now}, now)

    def _tensors(self) -> Tuple[Dict[str, Any], Dict[str, Any], int]:
        """Parameters and buffers of all networks by name, and how many parameters are sharded."""
        networks = self._networks.outermost()
        parameters: Dict[str, Any] = {}
        buffers: Dict[str, Any] = {}
        sharded = 0
        for number, network in enumerate(networks):
            prefix = f"network {number}: " if len(networks) > 1 else ""
            flattened = any(type(part).__name__ == "FullyShardedDataParallel" for part in network.modules())
            for name, tensor in network.named_parameters():
                if flattened or is_sharded(tensor):
                    sharded += 1
                else:
                    parameters[prefix + name] = tensor
            buffers.update(
                (prefix + name, tensor) for name, tensor in network.named_buffers() if not is_sharded(tensor)
            )
        return parameters, buffers, sharded


def is_sharded(tensor: Any) -> bool:
    """Whether a rank has only a part of ``tensor``, or nothing that it could digest: FSDP's, lazy, sparse ones."""
    torch: Any = sys.modules["torch"]
    # DTensor; FlatParameter of FSDP1; ZeRO-3 of DeepSpeed
    part = any(hasattr(tensor, name) for name in ("to_local", "_local_shard", "ds_tensor"))
    lazy = isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
    return bool(part or lazy or tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized)
