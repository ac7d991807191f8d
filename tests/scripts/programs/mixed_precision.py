"""DDP in bfloat16 with a gradient scaler, a comm hook and a profiler of the program's own, and two batches a step."""

import atexit
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(124, 8), torch.randint(0, 3, (124,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)  # 7 of 8 and one of 6 for each rank
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 3))
model = nn.parallel.DistributedDataParallel(net)
reduced, traces = [], []


def as_bfloat16(state, bucket):
    """Halve what is sent, and count it."""
    reduced.append(bucket.buffer().numel())
    return default_hooks.bf16_compress_hook(state, bucket)


model.register_comm_hook(dist.group.WORLD, as_bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
losses = []
windows = profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda done: traces.append(len(done.key_averages()) > 10),
)
with windows:
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            last = i % 2 == 1
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y)
                bad = float("inf") if (epoch, i) == (1, 3) else 1.0
                scaler.scale(loss * bad).backward()
            losses.append(loss.item())
            if last:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                windows.step()
if dist.get_rank() == 0:
    print([loss.hex() for loss in losses], scaler.get_scale(), len(reduced), traces)
dist.destroy_process_group()
