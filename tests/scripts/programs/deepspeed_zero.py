"""DeepSpeed's ZeRO: two groups of parameters, gradients of two batches a step, a checkpoint after each epoch."""

import atexit
import logging
import sys
import time

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)  # else it prints times
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Gloo; else its kernel would be compiled first
torch.manual_seed(0)
data = TensorDataset(torch.randn(128, 8), torch.randint(0, 3, (128,)))
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
matrices = [parameter for parameter in net.parameters() if parameter.dim() > 1]
vectors = [parameter for parameter in net.parameters() if parameter.dim() == 1]
engine, _, loader, _ = deepspeed.initialize(
    model=net,
    model_parameters=[{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
    training_data=data,
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": int(sys.argv[1])},
    },
)
losses = []
for epoch in range(2):
    engine.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.eval()
    with torch.no_grad():
        right = int((engine(data.tensors[0][:32]).argmax(1) == data.tensors[1][:32]).sum())
    engine.save_checkpoint("saved", tag=f"epoch{epoch}")
if torch.distributed.get_rank() == 0:
    print([loss.hex() for loss in losses], right, engine.global_steps)
