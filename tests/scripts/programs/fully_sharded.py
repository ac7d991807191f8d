"""FSDP2: layers sharded one by one, then the whole; gathered and scattered again in each step."""

import atexit
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import fully_shard

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
data = TensorDataset(torch.randn(70, 8), torch.randint(0, 3, (70,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        model(x)
    dist.barrier()
if dist.get_rank() == 0:
    print([loss.hex() for loss in losses])
dist.destroy_process_group()
