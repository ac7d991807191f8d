"""Lightning: as many processes as asked for, which it starts itself, with evaluation and checkpoints."""

import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pl.seed_everything(0, verbose=False)


class Classifier(pl.LightningModule):
    """Three classes of eight numbers."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 3))
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


if __name__ == "__main__":
    processes = int(sys.argv[1]) if sys.argv[1:] else 1
    data = TensorDataset(torch.randn(70, 8), torch.randint(0, 3, (70,)))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=2,
        accumulate_grad_batches=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        default_root_dir="saved",
    )
    model = Classifier()
    trainer.fit(model, DataLoader(data, batch_size=8), DataLoader(data, batch_size=10))
    if trainer.is_global_zero:
        print([loss.hex() for loss in model.losses])
