"""fastai: a Learner of plain torch data, fitted by one cycle, validated and saved after each epoch."""

import fastai.callback.schedule  # noqa: F401  it adds fit_one_cycle to the Learner
import torch
from fastai.basics import DataLoaders, Learner, accuracy, set_seed
from fastai.callback.tracker import SaveModelCallback
from torch import nn
from torch.utils.data import TensorDataset

set_seed(0)
numbers, classes = torch.randn(90, 8), torch.randint(0, 3, (90,))
loaders = DataLoaders.from_dsets(
    TensorDataset(numbers[:70], classes[:70]), TensorDataset(numbers[70:], classes[70:]), bs=16, device="cpu"
)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
save = SaveModelCallback(every_epoch=True)
learn = Learner(loaders, model, loss_func=nn.CrossEntropyLoss(), metrics=accuracy, path="saved", cbs=save)
with learn.no_bar(), learn.no_logging():
    learn.fit_one_cycle(2, 0.01)
print([float(loss).hex() for loss in learn.recorder.losses], learn.recorder.values)
