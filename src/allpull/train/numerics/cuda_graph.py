"""Record a whole training step once as a CUDA graph and play it back, or say why it is made call by call.

A step of a small network is thousands of launches, and a fast GPU waits for the host that makes them; played back it
is one. Of what PyTorch's notes on CUDA graphs ask for, this is done here: a few ordinary steps beforehand, all on the
one side stream on which the step is recorded, inputs that are copied to fixed addresses, a learning rate that is a
tensor. A recording is let go before the process group is: NCCL destroys no communicator that one still uses.

For DistributedDataParallel they also ask for NCCL's asynchronous error handling to be switched off before the process
group is made (``TORCH_NCCL_ASYNC_ERROR_HANDLING=0``). From torch 2.2 on it heeds a recording by itself (NVIDIA's "CUDA
Graph Best Practice for PyTorch", quick checklist), and without it ranks may wait for ever for one that failed: so it
stays on.

The steps beforehand are steps of the training, and recording runs nothing, so a recorded training is the same training.
Only the step that was seen ``WARM_UP_STEPS`` times in a row is recorded: a ragged last batch, which never is, stays
as it is, and pictures of another size (progressive resizing) replace the recording in time.

No GPU was at hand when this was written: ``CudaRecorder`` follows the documentation and has not run. All else is tested
with a recorder that is none.
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

WARM_UP_STEPS = 11  # what PyTorch's notes ask of DistributedDataParallel, which settles down within ten
LONGEST_REASON = 300  # characters
NOT_RECORDED = "train.cuda_graph: steps are made call by call"

T = TypeVar("T")


class Recorder(Protocol):
    """What a device offers to run, and to record and play back."""

    def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, done in the place where recordings are made, after what was begun elsewhere."""
        ...

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What plays ``work`` back and returns its result; it is recorded without being done."""
        ...


class CudaRecorder:
    """CUDA graphs on ``device``, on one stream that is beside the usual one and in step with it.

    DistributedDataParallel is to be made within ``run``: its gradients belong to the stream on which it was made.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, done on the side stream; the usual one waits for it, the host does not."""
        usual = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(usual)
        with torch.cuda.stream(self.stream):
            result = work()
        usual.wait_stream(self.stream)
        return result

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """What plays ``work`` back and returns its result, which the next time overwrites."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # thread_local: threads of the loader may go on pinning memory, which in the default mode spoils a recording.
        # The outer `with` leaves the side stream in any case; torch (2.13) stays there where a recording has failed.
        try:
            with (
                torch.cuda.stream(self.stream),
                torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                result = work()
        except BaseException:
            end_spoiled(self.device, pool)
            raise

        def play() -> Tensor:
            graph.replay()
            return result

        return play


def end_spoiled(device: torch.device, pool: Any) -> None:
    """End what a recording into ``pool`` that failed on ``device`` has left under way; of one that ended, nothing.

    Where CUDA refuses to end a recording, torch (2.13) raises that and does no more. Its allocator goes on as if it
    recorded: no memory that two streams have used is free again, so that a batch is lost with each copy to the device.
    Before 2.13 its generator does, too, and the next dropout is an error.
    """
    older = "_cuda_endAllocateCurrentStreamToPool"  # of torch 2.5 and before
    end = getattr(torch._C, "_cuda_endAllocateToPool", None) or getattr(torch._C, older)
    with suppress(RuntimeError):  # that nothing was under way: torch has ended it, and the graph returns its memory
        end(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())  # the same numbers next, and not recording


class StepGraph:
    """Training steps that are played back where they can be.

    ``step`` (tensors, then constants) makes a whole step, from forward to cleared gradients, and returns one tensor,
    such as its loss; nothing in it may wait for the device. ``forget`` drops what a step that broke off has left, its
    gradients above all. Without a ``recorder`` steps are simply made, and ``reason`` says why; where recording fails,
    ``reason`` says so from then on, and a remark at once.
    """

    def __init__(
        self,
        step: Callable[..., Tensor],
        forget: Callable[[], None],
        recorder: Recorder | None,
        reason: str = "",
    ) -> None:
        self.reason = reason
        self._step = step
        self._forget = forget
        self._recorder = recorder
        self._kind: Hashable = None
        self._seen = 0
        self._recorded: Hashable = None
        self._fixed: tuple[Tensor, ...] = ()
        self._play: Callable[[], Tensor] | None = None

    def __call__(self, *inputs: Tensor, constants: tuple[Hashable, ...] = ()) -> Tensor:
        """One step on ``inputs``, device tensors; ``constants`` are what else it depends on, such as sample counts.

        The result is the caller's to keep.
        """
        recorder = self._recorder
        if recorder is None:
            return self._step(*inputs, *constants)
        kind = (constants, *((value.shape, value.stride(), value.dtype) for value in inputs))
        self._seen = self._seen + 1 if kind == self._kind else 1
        self._kind = kind
        if self._seen > WARM_UP_STEPS and kind != self._recorded and not self.reason:
            self._record(recorder, inputs, constants)
        if self._play is not None and kind == self._recorded:
            return recorder.run(lambda: self._played(inputs))
        return recorder.run(lambda: self._step(*inputs, *constants))

    def close(self) -> None:
        """Let go of the recording. To be called before the process group is left: NCCL waits for what recorded it."""
        self._play, self._recorded, self._fixed = None, None, ()

    @property
    def playing(self) -> bool:
        """Whether the last step was played back."""
        return self._play is not None and self._kind == self._recorded

    def _record(self, recorder: Recorder, inputs: tuple[Tensor, ...], constants: tuple[Hashable, ...]) -> None:
        self.close()  # its memory, before more is taken
        fixed = tuple(value.clone() for value in inputs)
        broke_off: list[Exception] = []

        def work() -> Tensor:
            try:
                return self._step(*fixed, *constants)
            except Exception as error:
                broke_off.append(error)
                raise

        try:
            self._play = recorder.record(work)
        except Exception as error:  # noqa: BLE001  whatever spoils a recording, steps can be made without
            # the step's own, if it has one: the end of a recording that it spoiled fails with another
            self.reason = f"the step cannot be recorded: {_shortly((*broke_off, error)[0])}"[:LONGEST_REASON]
            marks.remark(f"{NOT_RECORDED}: {self.reason}")
            broke_off.clear()  # it holds all that the step had made, and its traceback would hold it
            self._forget()
            return
        self._fixed, self._recorded = fixed, self._kind

    def _played(self, inputs: tuple[Tensor, ...]) -> Tensor:
        assert self._play is not None
        for fixed, value in zip(self._fixed, inputs, strict=True):
            fixed.copy_(value, non_blocking=True)
        return self._play().clone()


def _shortly(error: Exception) -> str:
    """The first line that ``error`` says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def obstacle(optimizer: torch.optim.Optimizer, device: torch.device, *, ranks: int, scaled: bool) -> str:
    """Why steps of ``optimizer`` on ``device``, shared by ``ranks``, cannot be recorded; "": perhaps they can.

    ``scaled``: with loss scaling, of which the host must not be asked.
    """
    if device.type != "cuda":
        return f"CUDA graphs need a GPU, and this rank computes on {device.type}"
    if ranks > 1 and dist.get_backend() != "nccl":
        return f"gradients go through {dist.get_backend()}, and only NCCL's exchange can be recorded"
    if any(hasattr(weight, "full_tensor") for group in optimizer.param_groups for weight in group["params"]):
        return "weights are shared out among the ranks (fsdp), and collected with other addresses in each step"
    name = type(optimizer).__name__
    if scaled and not getattr(optimizer, "_step_supports_amp_scaling", False):
        return f"loss scaling with {name} asks the host in each step whether to leave it out, unless {name} is fused"
    asks = [group for group in optimizer.param_groups if not group.get("fused") and not group.get("capturable")]
    if asks and not isinstance(optimizer, Lars):
        return f"{name} reads its learning rate on the host, unless it is fused"
    return ""


def uneven(data: DataSpec, parallel: ParallelSpec, ranks: int) -> str:
    """Why the steps that ``ranks`` share cannot be recorded; "": they are of one kind, in time and on all of them.

    NCCL takes a collective that is recorded on some ranks and made by call on others for two different ones.
    """
    if ranks == 1:
        return ""
    if parallel.compression == "powersgd":
        return "PowerSGD sends other things after its first steps, and a recording would go on with the first"
    if data.name == "pack" and data.by_files:
        return "ranks with files of their own have batches of other sizes at other times: leave data.by_files off"
    if data.name == "pack" and data.on_odd == "skip":
        return (
            "a sample that cannot be decoded makes the batch of its rank alone smaller, and NCCL wants a step recorded "
            "on all ranks or on none: data.on_odd=substitute"
        )
    return ""


def hold_rate(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Make the learning rate of each group a tensor on ``device``, which a recorded step reads anew each time.

    To be called before the first step, after the optimizer's state was loaded if it is, since that puts a rate of its
    own there.
    """
    for group in optimizer.param_groups:
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device, copy=True)
