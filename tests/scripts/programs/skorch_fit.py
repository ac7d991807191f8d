"""skorch: a classifier in the manner of scikit-learn, validated and saved after each epoch."""

import numpy as np
import torch
from sklearn.datasets import make_classification
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint
from torch import nn

torch.manual_seed(0)
x, y = make_classification(100, 20, n_informative=10, random_state=0)


class Net(nn.Module):
    """Two classes of twenty numbers."""

    def __init__(self, units=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, units), nn.ReLU(), nn.Dropout(0.5), nn.Linear(units, 2))

    def forward(self, numbers):
        return self.layers(numbers).softmax(dim=-1)


net = NeuralNetClassifier(
    Net,
    max_epochs=2,
    lr=0.1,
    batch_size=32,
    iterator_train__shuffle=True,
    verbose=0,
    callbacks=[Checkpoint(monitor=None, dirname="saved")],
)
net.fit(x.astype(np.float32), y.astype(np.int64))
print([loss.hex() for loss in net.history[:, "train_loss"]], net.predict_proba(x.astype(np.float32)).sum())
