"""PowerSGD with its state kept per parameter, so that a checkpoint can hold it.

PowerSGD (Vogels, Karimireddy & Jaggi 2019) sends a gradient M as P·Qᵀ. Its state is the error feedback, which is added
to the next gradient, and Q, from which the next approximation starts; P is recomputed from both in each step. torch's
hook keeps the state per bucket, but buckets belong to one process: DistributedDataParallel rebuilds them once it has
seen the order in which gradients become ready. So the state moves here: from buckets to parameters when it is requested
or buckets change, and from parameters into a bucket when it first occurs. With the same number of ranks a resumed
training then continues exactly; bit for bit with two, whose sums do not depend on the other content of a bucket, if
products do not depend on memory addresses either (with oneMKL: MKL_CBWR=COMPATIBLE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from allpull.schema.trainspec import ParallelSpec

SMALLEST_NORM = 1e-8  # added to the norms of Q's columns: all-zero gradients would give 0/0
STEPS, LEFT_OUT, BASIS = "steps", "left_out/", "basis/"
"""Keys of ``PowerSgd.state``: the number of steps, and the prefixes of each parameter's error feedback and basis."""


class PowerSgd:
    """The communication hook for DistributedDataParallel over ``model``.

    ``one_by_one``: only one bucket in flight, for Gloo. torch's hook waits for a collective within the callback of
    another. Gloo has two threads, which run callbacks and collectives: with two buckets in flight both would wait for
    work that neither can start.
    """

    def __init__(self, model: nn.Module, parallel: ParallelSpec, *, one_by_one: bool) -> None:
        self.hook_state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=parallel.powersgd_rank,
            start_powerSGD_iter=parallel.powersgd_start,
            orthogonalization_epsilon=SMALLEST_NORM,
        )
        self._parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self._names = {id(one): name for name, one in self._parameters.items()}
        self._buckets: dict[int, list[str]] = {}
        self._left_out: dict[str, Tensor] = {}
        self._basis: dict[str, Tensor] = {}
        self._one_by_one = one_by_one
        self._previous: torch.futures.Future[Tensor] | None = None

    def __call__(self, _state: object, bucket: Any) -> torch.futures.Future[Tensor]:
        """The averaged gradients of ``bucket``; torch calls it when all of them are ready."""
        if self._previous is not None:
            self._previous.wait()
        if self.hook_state.iter >= self.hook_state.start_powerSGD_iter:
            self._fill(bucket.index(), [self._names[id(one)] for one in bucket.parameters()])
        pending = powerSGD_hook.powerSGD_hook(self.hook_state, bucket)
        self._previous = pending if self._one_by_one else None
        return pending

    def state(self) -> dict[str, Tensor]:
        """The whole state, each tensor once; call it between steps. The error feedback is this rank's own."""
        left_out, basis = {**self._left_out}, {**self._basis}
        for index in self._buckets:
            for target, values in zip((left_out, basis), self._of_bucket(index), strict=True):
                target.update(values)
        named = {f"{LEFT_OUT}{name}": left_out[name] for name in self._parameters if name in left_out}
        named |= {f"{BASIS}{name}": basis[name] for name in self._parameters if name in basis}
        return {STEPS: torch.tensor(self.hook_state.iter), **named}

    def load_state(self, ranks: Sequence[Mapping[str, Tensor]], rank: int | None) -> None:
        """Restore the ``state`` of each of ``ranks``, as ``rank`` of them.

        None: the number of ranks has changed. Each then gets the mean of the error feedback; since gradients are
        averaged over ranks, no feedback is lost. A basis of another approximation rank is drawn again.

        Raises:
            ValueError: it is of another network.
        """
        own = ranks[rank or 0]
        count = own[STEPS]
        if count.dim() or count.is_floating_point() or not 0 <= int(count) < 2**53:
            raise ValueError("the state of PowerSGD is invalid")
        left_out, basis = {}, {}
        for name, parameter in self._parameters.items():
            some = [one[LEFT_OUT + name] for one in (ranks if rank is None else [own]) if LEFT_OUT + name in one]
            if any(one.numel() != parameter.numel() for one in some):
                raise ValueError(f"the error feedback of {name} has another size")
            if some:
                mean = torch.stack(some).sum(0) / (len(ranks) if rank is None else 1)
                left_out[name] = mean.to(parameter.device, parameter.dtype).flatten()
            q = own.get(BASIS + name)
            if q is not None and q.numel() == self._basis_size(parameter):
                basis[name] = q.to(parameter.device, parameter.dtype).flatten()
        self._left_out, self._basis, self._buckets = left_out, basis, {}
        for memory in self._memories():
            memory.clear()
        self.hook_state.iter = int(count)

    def _memories(self) -> tuple[dict[int, Tensor], ...]:
        """Torch's state per bucket."""
        return self.hook_state.error_dict, self.hook_state.p_memory_dict, self.hook_state.q_memory_dict

    def _fill(self, index: int, names: list[str]) -> None:
        """Make torch's state of bucket ``index`` that of its current parameters ``names``."""
        if self._buckets.get(index) == names:
            return
        # other buckets stay: they may be in flight with unchanged parameters
        for other in [i for i, members in self._buckets.items() if i == index or not set(members).isdisjoint(names)]:
            left_out, basis = self._of_bucket(other)
            self._left_out |= left_out
            self._basis |= basis
            del self._buckets[other]
            for memory in self._memories():
                memory.pop(other, None)
        self._buckets[index] = names
        left_out = {name: self._left_out.pop(name) for name in names if name in self._left_out}
        if left_out:
            parts = [left_out.get(name, self._zeros(name)) for name in names]
            self.hook_state.error_dict[index] = torch.cat(parts)
        compressed = self._in_memory(names)
        if compressed:
            drawn = {name: self._initial_basis(name) for name in compressed if name not in self._basis}
            basis = {name: self._basis.pop(name) for name in compressed if name in self._basis} | drawn
            self.hook_state.q_memory_dict[index] = torch.cat([basis[name] for name in compressed])
            rows = sum(self._approximated(self._parameters[name])[0] for name in compressed)
            self.hook_state.p_memory_dict[index] = self.hook_state.q_memory_dict[index].new_empty(rows)

    def _of_bucket(self, index: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Views of the error feedback and the basis of each parameter in bucket ``index``."""
        names = self._buckets[index]
        error, basis = self.hook_state.error_dict.get(index), self.hook_state.q_memory_dict.get(index)
        left_out: dict[str, Tensor] = {}
        if error is not None:
            parts = torch.split(error, [self._parameters[name].numel() for name in names])
            left_out = dict(zip(names, parts, strict=True))
        compressed = self._in_memory(names)
        if basis is None or not compressed:
            return left_out, {}
        parts = torch.split(basis, [self._basis_size(self._parameters[name]) for name in compressed])
        return left_out, dict(zip(compressed, parts, strict=True))

    def _in_memory(self, names: Sequence[str]) -> list[str]:
        """The compressed ones of ``names`` in torch's order: grouped by shape, in order of first occurrence."""
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name in names:
            parameter = self._parameters[name]
            if self._basis_size(parameter):
                by_shape.setdefault(_matrix(parameter), []).append(name)
        return [name for group in by_shape.values() for name in group]

    def _approximated(self, parameter: Tensor) -> tuple[int, int]:
        """The sizes of P and Q of ``parameter``; 0 if compression saves too little and it is sent uncompressed."""
        rows, columns = _matrix(parameter)
        rank = min(rows, columns, self.hook_state.matrix_approximation_rank)
        saves = (rows + columns) * rank * self.hook_state.min_compression_rate < rows * columns  # torch's criterion
        return (rows * rank, columns * rank) if saves else (0, 0)

    def _basis_size(self, parameter: Tensor) -> int:
        return self._approximated(parameter)[1]

    def _initial_basis(self, name: str) -> Tensor:
        """The first basis, equal on all ranks; torch's would depend on the bucket of the parameter."""
        parameter, generator = self._parameters[name], torch.Generator().manual_seed([*self._parameters].index(name))
        drawn = torch.randn(self._basis_size(parameter), generator=generator, dtype=parameter.dtype)
        return drawn.to(parameter.device)

    def _zeros(self, name: str) -> Tensor:
        return torch.zeros_like(self._parameters[name]).flatten()


def _matrix(parameter: Tensor) -> tuple[int, int]:
    """Rows and columns of the matrix that PowerSGD makes of a gradient."""
    return len(parameter), parameter.numel() // len(parameter)
