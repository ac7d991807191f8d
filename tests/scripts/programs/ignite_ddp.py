"""pytorch-ignite with DDP: automatic model, loaders and optimizer, an evaluator, and a checkpoint after each epoch."""

import atexit
import logging
import time

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy, Loss
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import TensorDataset

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
logging.disable(logging.INFO)


def training(rank):
    """What each rank does."""
    manual_seed(0)
    numbers, classes = torch.randn(180, 8), torch.randint(0, 3, (180,))
    loader = idist.auto_dataloader(TensorDataset(numbers[:140], classes[:140]), batch_size=32, shuffle=True)
    check = idist.auto_dataloader(TensorDataset(numbers[140:], classes[140:]), batch_size=16)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model = idist.auto_model(net)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
    metrics = {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())}
    evaluator = create_supervised_evaluator(model, metrics)
    losses = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(check))
    saver = Checkpoint({"model": model, "optimizer": optimizer}, DiskSaver("saved"), n_saved=2)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    trainer.run(loader, max_epochs=2)
    if rank == 0:
        found = {name: value.hex() for name, value in evaluator.state.metrics.items()}
        print([float(loss).hex() for loss in losses], trainer.state.iteration, found)


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(training)
