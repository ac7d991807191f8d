"""The training loop of a virtual accelerator: the reference trainer's loop, with waits in place of computation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from allpull import marks
from allpull.backend import ranks_store
from allpull.rehearse.ranks.accelerator import Accelerator, Optimizer, wrap
from allpull.rehearse.ranks.faults import Extra, Moment, added, meets
from allpull.rehearse.ranks.schedule import Plan, plan
from allpull.rehearse.ranks.timeline import Timeline, fine_timers


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The number of this rank, and the number of ranks."""

    rank: int
    ranks: int


def train(cluster: Mapping[str, Any], steps: int) -> None:
    """Train the accelerator of ``cluster`` for ``steps`` steps; every rank calls this with torchrun's variables set.

    Raises:
        BadInput: the cluster cannot be used.
    """
    planned = plan(cluster)
    place = join()
    try:
        fine_timers()
        Training(planned, place, Timeline()).run(steps)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def join() -> Place:
    """Join the process group over Gloo, even if there are GPUs; a single rank needs no group."""
    torch.set_num_threads(1)
    place = Place(rank=int(os.environ.get("RANK", "0")), ranks=int(os.environ.get("WORLD_SIZE", "1")))
    if place.ranks > 1:
        dist.init_process_group("gloo", store=ranks_store(), rank=place.rank, world_size=place.ranks)
    return place


class Training:
    """One rank's share of the training."""

    def __init__(self, planned: Plan, place: Place, timeline: Timeline) -> None:
        self.plan = planned
        self.place = place
        self.timeline = timeline
        self.accelerator = Accelerator(planned, timeline)
        self.wrapped: nn.Module = self.accelerator
        if place.ranks > 1:
            self.wrapped = wrap(self.accelerator, planned.shrink, planned.bucket_mib)
        self.optimizer = Optimizer(self.accelerator, timeline, planned.optimizer_s)

    def run(self, steps: int) -> None:
        """Train for ``steps`` steps; an epoch that they do not complete is not evaluated."""
        epoch_steps = self.plan.epoch_steps or steps
        marks.metric("steps_per_epoch", epoch_steps)
        self.timeline.restart()
        zero_s: float | None = None  # the end of the first step, common to all ranks; link faults count from it
        for step in range(steps):
            epoch, in_epoch = divmod(step, epoch_steps)
            if in_epoch == 0:
                marks.epoch(epoch, step)
            elapsed_s = 0.0 if zero_s is None else self.timeline.now_s() - zero_s
            moment = Moment(rank=self.place.rank, ranks=self.place.ranks, step=step, elapsed_s=elapsed_s)
            extra = added(self.plan.faults, moment)
            self.step(extra)
            zero_s = self.timeline.now_s() if zero_s is None else zero_s
            self.sequential(step, extra)
            if in_epoch == epoch_steps - 1:
                self.end_epoch(epoch, extra)

    def step(self, extra: Extra) -> None:
        """One optimizer step, including the time that faults add to it."""
        self.accelerator.extra = extra
        with marks.phase("input"):
            self.timeline.spend(max(0.0, self.plan.input_s + extra.input_s))
        for _ in range(self.plan.passes):
            with marks.phase("forward"):
                loss = self.wrapped(torch.zeros(()))
            with marks.phase("backward"):
                torch.autograd.backward(loss)
                self.timeline.restart()  # DDP has waited for the other ranks
            self.accelerator.extra = Extra(share=extra.share)  # other faults are of the first pass
        with marks.phase("optimizer"):
            self.optimizer.step()
        marks.step(max(1, round(self.plan.batch * self.plan.passes * extra.share)))

    def sequential(self, step: int, extra: Extra) -> None:
        """What rank 0 does alone, as in scripts written for one GPU."""
        if extra.evaluation_s:
            with marks.phase("evaluation"):
                self.timeline.spend(extra.evaluation_s)
        if self.place.ranks > 1 and meets(self.plan.faults, step):
            dist.barrier()
            self.timeline.restart()
        if extra.checkpoint_s:
            with marks.phase("checkpoint"):
                self.timeline.spend(extra.checkpoint_s)

    def end_epoch(self, epoch: int, extra: Extra) -> None:
        """Evaluate and save as the reference trainer does: each rank its share, and one small sum of the scores."""
        every = self.plan.evaluate_every
        if self.plan.evaluation_s and every and (epoch + 1) % every == 0:
            with marks.phase("evaluation"):
                self.timeline.spend(self.plan.evaluation_s + extra.common_evaluation_s)
                if self.place.ranks > 1:
                    dist.all_reduce(torch.zeros(4, dtype=torch.float64))
                    self.timeline.restart()
        if self.plan.checkpoint_s:
            with marks.phase("checkpoint"):
                self.timeline.spend(self.plan.checkpoint_s)
