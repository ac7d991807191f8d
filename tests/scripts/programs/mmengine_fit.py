"""MMEngine: a Runner that trains by epochs, with gradients of two batches a step, validation and checkpoints."""

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import TensorDataset


class Classifier(BaseModel):
    """A small network that computes its loss itself."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x, y, mode):
        answers = self.net(x)
        return {"loss": nn.functional.cross_entropy(answers, y)} if mode == "loss" else (answers, y)


class Right(BaseMetric):
    """How many answers are right."""

    def process(self, data_batch, data_samples):
        answers, y = data_samples
        self.results.append(int((answers.argmax(1) == y).sum()))

    def compute_metrics(self, results):
        return {"right": sum(results)}


class Keep(Hook):
    """Keeps every loss."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        losses.append(outputs["loss"].item().hex())


losses = []
torch.manual_seed(0)
numbers, classes = torch.randn(90, 8), torch.randint(0, 3, (90,))


def loader(part, shuffle):
    """The description of a loader."""
    dataset = TensorDataset(numbers[part], classes[part])
    sampler = {"type": "DefaultSampler", "shuffle": shuffle}
    return {"dataset": dataset, "batch_size": 10, "sampler": sampler, "collate_fn": {"type": "default_collate"}}


runner = Runner(
    model=Classifier(),
    work_dir="saved",
    log_level="ERROR",
    train_dataloader=loader(slice(60), True),
    val_dataloader=loader(slice(60, 90), False),
    val_evaluator={"type": Right},
    train_cfg={"by_epoch": True, "max_epochs": 2},
    val_cfg={},
    optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 2, "clip_grad": {"max_norm": 1}},
    default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 1}},
    custom_hooks=[Keep()],
    randomness={"seed": 0},
)
runner.train()
print(losses, runner.iter)
