"""FSDP2 as torchtitan uses it: sharded, checkpointed blocks in bfloat16, two batches a step, DCP after each epoch."""

import atexit
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out


class Transformer(nn.Module):
    """A decoder of two blocks, over fifty tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        block = {"d_model": 32, "nhead": 2, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(**block) for _ in range(2))
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
data = TensorDataset(torch.randint(0, 50, (70, 13)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = Transformer()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for place, block in enumerate(model.blocks):
    model.blocks[place] = fully_shard(checkpoint_wrapper(block), mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (tokens,) in enumerate(loader):
        last = number % 2 == 1 or number + 1 == len(loader)
        model.set_requires_gradient_sync(last)
        answers = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(answers.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        if last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    network, optimized = get_state_dict(model, optimizer)
    dcp.save({"model": network, "optimizer": optimized}, checkpoint_id=f"saved/{epoch}")
if dist.get_rank() == 0:
    print([loss.hex() for loss in losses])
dist.destroy_process_group()
