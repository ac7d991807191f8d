"""Capture a whole training step as a CUDA graph and replay it, or say why steps run eagerly.

A step of a small network is thousands of kernel launches, and a fast GPU waits for the host that issues them; replayed
it is one. Following PyTorch's notes on CUDA graphs: some eager warm-up steps on the side stream of the capture, inputs
copied to fixed addresses, and a learning rate that is a tensor. The graph is released before the process group: NCCL
does not destroy a communicator that a graph still uses.

For DistributedDataParallel the notes also disable NCCL's asynchronous error handling before the process group is made
(``TORCH_NCCL_ASYNC_ERROR_HANDLING=0``). From torch 2.2 on it respects captures by itself (NVIDIA's "CUDA Graph Best
Practice for PyTorch", quick checklist), and without it ranks may wait for ever for a failed one: so it stays on.

The warm-up steps are steps of the training, and capture executes nothing, so the training is the same with graphs.
Only a step that occurred ``WARM_UP_STEPS`` times in a row is captured: a ragged last batch never is and runs eagerly,
and images of another size (progressive resizing) replace the graph in time.

``tests/gpu`` captures a training of one rank on a real GPU; captures with NCCL have not run. The rest is tested with a
fake recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from allpull import marks
from allpull.schema.trainspec import DataSpec, ParallelSpec
from allpull.train.optim.lars import Lars

WARM_UP_STEPS = 11  # PyTorch's notes ask for 11 with DistributedDataParallel, which settles within ten
LONGEST_REASON = 300  # characters
NOT_RECORDED = "train.cuda_graph: steps run eagerly"

T = TypeVar("T")


class Recorder(Protocol):
    """How a device runs a step, and captures and replays it."""

    def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, run where captures are made and ordered after earlier work."""
        ...

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Capture ``work`` without executing it; returns a function that replays it and returns its result."""
        ...


class CudaRecorder:
    """CUDA graphs on ``device``, on a side stream that is synchronised with the current one.

    Construct DistributedDataParallel within ``run``: its gradients belong to the stream on which it was made.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, run on the side stream; the current stream waits for it, the host does not."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = work()
        current.wait_stream(self.stream)
        return result

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Capture ``work``; returns its replay, whose result the next replay overwrites."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # thread_local: loader threads may pin memory meanwhile, which invalidates a capture in the default mode.
        # The outer `with` always leaves the side stream; torch (2.13) stays on it after a failed capture.
        try:
            with (
                torch.cuda.stream(self.stream),
                torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                result = work()
        except BaseException:
            end_failed_capture(self.device, pool)
            raise

        def play() -> Tensor:
            graph.replay()
            return result

        return play


def end_failed_capture(device: torch.device, pool: Any) -> None:
    """Clean up after a failed capture into ``pool`` on ``device``; after one that ended there is nothing to do.

    If CUDA refuses to end a capture, torch (2.13) raises and does not clean up. Its allocator then behaves as if still
    capturing: memory used by two streams is never freed, so that each copy to the device leaks a batch. Before 2.13 the
    generator does the same, and the next dropout fails.
    """
    older = "_cuda_endAllocateCurrentStreamToPool"  # of torch 2.5 and before
    end = getattr(torch._C, "_cuda_endAllocateToPool", None) or getattr(torch._C, older)
    with suppress(RuntimeError):  # no capture in progress: torch ended it, and the graph returns its memory
        end(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())  # the same numbers next, without the capture


class StepGraph:
    """Training steps that are replayed where possible.

    ``step`` (tensors, then constants) runs a whole step, from forward to cleared gradients, and returns one tensor,
    such as its loss; nothing in it may wait for the device. ``discard`` drops the partial state of a failed step, above
    all its gradients. Without a ``recorder`` steps run eagerly, and ``reason`` says why; if capture fails, ``reason``
    and a remark say so.
    """

    def __init__(
        self,
        step: Callable[..., Tensor],
        discard: Callable[[], None],
        recorder: Recorder | None,
        reason: str = "",
    ) -> None:
        self.reason = reason
        self._step = step
        self._forget = discard
        self._recorder = recorder
        self._kind: Hashable = None
        self._repeats = 0
        self._recorded: Hashable = None
        self._fixed: tuple[Tensor, ...] = ()
        self._play: Callable[[], Tensor] | None = None

    def __call__(self, *inputs: Tensor, constants: tuple[Hashable, ...] = ()) -> Tensor:
        """One step on ``inputs``, device tensors; ``constants`` are its other arguments, such as sample counts.

        The caller may keep the result.
        """
        recorder = self._recorder
        if recorder is None:
            return self._step(*inputs, *constants)
        kind = (constants, *((value.shape, value.stride(), value.dtype) for value in inputs))
        self._repeats = self._repeats + 1 if kind == self._kind else 1
        self._kind = kind
        if self._repeats > WARM_UP_STEPS and kind != self._recorded and not self.reason:
            self._record(recorder, inputs, constants)
        if self._play is not None and kind == self._recorded:
            return recorder.run(lambda: self._played(inputs))
        return recorder.run(lambda: self._step(*inputs, *constants))

    def close(self) -> None:
        """Release the graph. Call it before leaving the process group: NCCL waits for graphs that use it."""
        self._play, self._recorded, self._fixed = None, None, ()

    @property
    def playing(self) -> bool:
        """Whether the last step was replayed."""
        return self._play is not None and self._kind == self._recorded

    def _record(self, recorder: Recorder, inputs: tuple[Tensor, ...], constants: tuple[Hashable, ...]) -> None:
        self.close()  # frees its memory before more is allocated
        fixed = tuple(value.clone() for value in inputs)
        failures: list[Exception] = []

        def work() -> Tensor:
            try:
                return self._step(*fixed, *constants)
            except Exception as error:
                failures.append(error)
                raise

        try:
            self._play = recorder.record(work)
        except Exception as error:  # noqa: BLE001  whatever fails, steps can run eagerly
            # prefer the step's own error: ending the capture that it invalidated fails with another
            self.reason = f"the step cannot be captured: {_short_reason((*failures, error)[0])}"[:LONGEST_REASON]
            marks.remark(f"{NOT_RECORDED}: {self.reason}")
            failures.clear()  # its traceback keeps the tensors of the step alive
            self._forget()
            return
        self._fixed, self._recorded = fixed, self._kind

    def _played(self, inputs: tuple[Tensor, ...]) -> Tensor:
        assert self._play is not None
        for fixed, value in zip(self._fixed, inputs, strict=True):
            fixed.copy_(value, non_blocking=True)
        return self._play().clone()


def _short_reason(error: Exception) -> str:
    """The first line of ``error``."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def obstacle(optimizer: torch.optim.Optimizer, device: torch.device, *, ranks: int, scaled: bool) -> str:
    """Why steps of ``optimizer`` on ``device`` with ``ranks`` cannot be captured; "" if no obstacle is known.

    ``scaled``: with loss scaling, whose state the host must not read.
    """
    if device.type != "cuda":
        return f"CUDA graphs need a GPU, and this rank computes on {device.type}"
    if ranks > 1 and dist.get_backend() != "nccl":
        return f"gradients go through {dist.get_backend()}, and only NCCL's exchange can be captured"
    if any(hasattr(weight, "full_tensor") for group in optimizer.param_groups for weight in group["params"]):
        return "weights are sharded over ranks (fsdp) and gathered at other addresses in each step"
    name = type(optimizer).__name__
    if scaled and not getattr(optimizer, "_step_supports_amp_scaling", False):
        return f"with loss scaling the host decides in each step of {name} whether to skip it, unless {name} is fused"
    host_reads = [group for group in optimizer.param_groups if not group.get("fused") and not group.get("capturable")]
    if host_reads and not isinstance(optimizer, Lars):
        return f"{name} reads its learning rate on the host, unless it is fused"
    return ""


def uneven(data: DataSpec, parallel: ParallelSpec, ranks: int) -> str:
    """Why steps of several ``ranks`` cannot be captured; "" if all steps on all ranks are of one kind.

    NCCL does not match a captured collective on some ranks with an eager one on others.
    """
    if ranks == 1:
        return ""
    if parallel.compression == "powersgd":
        return "PowerSGD sends other data after its first steps, and a graph would repeat the first"
    if data.name == "pack" and data.by_files:
        return "ranks with files of their own have batches of differing sizes and times: turn data.by_files off"
    if data.name in {"pack", "imagefolder"} and data.on_odd == "skip":
        return (
            "a sample that cannot be decoded shrinks the batch of one rank only, and NCCL needs a step captured "
            "on all ranks or on none: data.on_odd=substitute"
        )
    return ""


def rate_as_tensor(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Make the learning rate of each group a tensor on ``device``, which a replayed step reads each time.

    Call it before the first step and after loading the optimizer's state, which overwrites the rate.
    """
    for group in optimizer.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device, copy=True)
