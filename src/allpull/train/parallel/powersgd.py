"""PowerSGD, with what it remembers kept by parameter, so that a checkpoint can hold it.

PowerSGD (Vogels, Karimireddy & Jaggi 2019) sends a gradient M as P·Qᵀ. It remembers what that left out, which is added
to the next gradient, and Q, from which the next approximation begins; P is made anew of both in each step. torch's hook
keeps them by bucket. But buckets are those of one process: DistributedDataParallel begins with other ones than it goes
on with, after it has seen the order in which gradients become ready. So memory moves here: from buckets to parameters
when they are asked for, or no longer the same, and from parameters into a bucket when it first comes by. With as many
ranks as before a training then goes on as if it had never stopped; to the bit with two of them, whose sums do not
depend on what else is in a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from allpull.schema.trainspec import ParallelSpec

SMALLEST_NORM = 1e-8  # added to norms of Q's columns: a layer whose gradients are all 0 would give 0/0
STEPS, LEFT_OUT, BASIS = "steps", "left_out/", "basis/"
"""Names in ``PowerSgd.state``: how many steps were made; and, before the name of a parameter, its two memories."""


class PowerSgd:
    """The hook for DistributedDataParallel over ``model``.

    ``one_by_one``: with one bucket under way at a time, for Gloo. torch's hook waits for a collective within the
    callback of another. Gloo has two threads, and they run callbacks as well as collectives: with two buckets under
    way both would wait for what neither of them can begin.
    """

    def __init__(self, model: nn.Module, parallel: ParallelSpec, *, one_by_one: bool) -> None:
        self.torchs = powerSGD_hook.PowerSGDState(
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
        self._before: torch.futures.Future[Tensor] | None = None

    def __call__(self, _state: object, bucket: Any) -> torch.futures.Future[Tensor]:
        """The averaged gradients of ``bucket``; torch calls it when they are all there."""
        if self._before is not None:
            self._before.wait()
        if self.torchs.iter >= self.torchs.start_powerSGD_iter:
            self._fill(bucket.index(), [self._names[id(one)] for one in bucket.parameters()])
        under_way = powerSGD_hook.powerSGD_hook(self.torchs, bucket)
        self._before = under_way if self._one_by_one else None
        return under_way

    def state(self) -> dict[str, Tensor]:
        """All that it remembers, each tensor once; to be asked between steps. What it left out is this rank's own."""
        left_out, basis = {**self._left_out}, {**self._basis}
        for index in self._buckets:
            for known, found in zip((left_out, basis), self._of_bucket(index), strict=True):
                known.update(found)
        named = {f"{LEFT_OUT}{name}": left_out[name] for name in self._parameters if name in left_out}
        named |= {f"{BASIS}{name}": basis[name] for name in self._parameters if name in basis}
        return {STEPS: torch.tensor(self.torchs.iter), **named}

    def load_state(self, ranks: Sequence[Mapping[str, Tensor]], rank: int | None) -> None:
        """Go on from the ``state`` of each of so many ``ranks``, as ``rank`` of them.

        None: there are others now. Each then gets the mean of what was left out. What is sent is a mean over ranks, so
        that all that is owed to the weights is still paid. A basis of another rank of approximation begins anew.

        Raises:
            ValueError: it is of another network.
        """
        own = ranks[rank or 0]
        count = own[STEPS]
        if count.dim() or count.is_floating_point() or not 0 <= int(count) < 2**53:
            raise ValueError("the state of PowerSGD is none")
        left_out, basis = {}, {}
        for name, parameter in self._parameters.items():
            some = [one[LEFT_OUT + name] for one in (ranks if rank is None else [own]) if LEFT_OUT + name in one]
            if any(one.numel() != parameter.numel() for one in some):
                raise ValueError(f"what PowerSGD left out of {name} has another size")
            if some:
                mean = torch.stack(some).sum(0) / (len(ranks) if rank is None else 1)
                left_out[name] = mean.to(parameter.device, parameter.dtype).flatten()
            q = own.get(BASIS + name)
            if q is not None and q.numel() == self._basis_size(parameter):
                basis[name] = q.to(parameter.device, parameter.dtype).flatten()
        self._left_out, self._basis, self._buckets = left_out, basis, {}
        for memory in self._memories():
            memory.clear()
        self.torchs.iter = int(count)

    def _memories(self) -> tuple[dict[int, Tensor], ...]:
        """All that torch keeps by bucket."""
        return self.torchs.error_dict, self.torchs.p_memory_dict, self.torchs.q_memory_dict

    def _fill(self, index: int, names: list[str]) -> None:
        """See to it that torch's memory of bucket ``index`` is that of ``names``, which it holds now."""
        if self._buckets.get(index) == names:
            return
        # not of the others: they may be under way, with the same parameters as before
        for other in [one for one, its in self._buckets.items() if one == index or not set(its).isdisjoint(names)]:
            left_out, basis = self._of_bucket(other)
            self._left_out |= left_out
            self._basis |= basis
            del self._buckets[other]
            for memory in self._memories():
                memory.pop(other, None)
        self._buckets[index] = names
        left_out = {name: self._left_out.pop(name) for name in names if name in self._left_out}
        if left_out:
            parts = [left_out.get(name, self._nothing(name)) for name in names]
            self.torchs.error_dict[index] = torch.cat(parts)
        compressed = self._in_memory(names)
        if compressed:
            drawn = {name: self._drawn(name) for name in compressed if name not in self._basis}
            basis = {name: self._basis.pop(name) for name in compressed if name in self._basis} | drawn
            self.torchs.q_memory_dict[index] = torch.cat([basis[name] for name in compressed])
            rows = sum(self._approximated(self._parameters[name])[0] for name in compressed)
            self.torchs.p_memory_dict[index] = self.torchs.q_memory_dict[index].new_empty(rows)

    def _of_bucket(self, index: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What is left out, and the basis, of each parameter in bucket ``index``, in torch's own memory."""
        names = self._buckets[index]
        error, basis = self.torchs.error_dict.get(index), self.torchs.q_memory_dict.get(index)
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
        """Those of ``names`` that are compressed, in torch's order: all of one shape together, as the first comes."""
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name in names:
            parameter = self._parameters[name]
            if self._basis_size(parameter):
                by_shape.setdefault(_matrix(parameter), []).append(name)
        return [name for alike in by_shape.values() for name in alike]

    def _approximated(self, parameter: Tensor) -> tuple[int, int]:
        """How many numbers P and Q of ``parameter`` have; 0 if that saves too little, and it is sent as it is."""
        rows, columns = _matrix(parameter)
        rank = min(rows, columns, self.torchs.matrix_approximation_rank)
        saves = (rows + columns) * rank * self.torchs.min_compression_rate < rows * columns  # as torch has it
        return (rows * rank, columns * rank) if saves else (0, 0)

    def _basis_size(self, parameter: Tensor) -> int:
        return self._approximated(parameter)[1]

    def _drawn(self, name: str) -> Tensor:
        """A basis to begin with, the same on all ranks; torch's would depend on the bucket that the parameter is in."""
        parameter, made = self._parameters[name], torch.Generator().manual_seed([*self._parameters].index(name))
        drawn = torch.randn(self._basis_size(parameter), generator=made, dtype=parameter.dtype)
        return drawn.to(parameter.device)

    def _nothing(self, name: str) -> Tensor:
        return torch.zeros_like(self._parameters[name]).flatten()


def _matrix(parameter: Tensor) -> tuple[int, int]:
    """Rows and columns of what PowerSGD takes a gradient for."""
    return len(parameter), parameter.numel() // len(parameter)
