"""Ray Train: two workers, a report after each epoch, the first with a checkpoint."""

import os
import tempfile

import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_func():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(70, 8), torch.randint(0, 3, (70,)))
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=8, shuffle=True))
    model = ray.train.torch.prepare_model(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        told = {"loss": losses[-1], "steps": len(losses)}
        if epoch > 0:
            ray.train.report(told)
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
            ray.train.report(told, checkpoint=Checkpoint.from_directory(folder))


trainer = ray.train.torch.TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(storage_path=os.path.abspath("results"), name="small"),
)
result = trainer.fit()
print("final", float(result.metrics["loss"]).hex(), result.metrics["steps"])
