"""Lightning's GAN by manual optimisation: two optimizers, each network frozen while the other learns."""

import atexit
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
pl.seed_everything(0, verbose=False)


class GAN(pl.LightningModule):
    """A generator of eight numbers, and the network that tells them from real ones."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
        self.losses = []

    def forward(self, z):
        return self.generator(z)

    def judged(self, numbers, real):
        answer = self.discriminator(numbers)
        return nn.functional.binary_cross_entropy(answer, torch.full_like(answer, real))

    def training_step(self, batch):
        (numbers,) = batch
        generating, judging = self.optimizers()
        z = torch.randn(len(numbers), 4)

        self.toggle_optimizer(generating)
        fooled = self.judged(self(z), 1.0)
        self.manual_backward(fooled)
        generating.step()
        generating.zero_grad()
        self.untoggle_optimizer(generating)

        self.toggle_optimizer(judging)
        loss = (self.judged(numbers, 1.0) + self.judged(self(z).detach(), 0.0)) / 2
        self.manual_backward(loss)
        judging.step()
        judging.zero_grad()
        self.untoggle_optimizer(judging)
        self.losses.append((fooled + loss).item())

    def configure_optimizers(self):
        return [torch.optim.Adam(one.parameters(), 0.01) for one in (self.generator, self.discriminator)], []


data = TensorDataset(torch.randn(70, 8))
trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp_find_unused_parameters_true",
    max_epochs=2,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
    default_root_dir="saved",
)
model = GAN()
trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True))
if trainer.is_global_zero:
    print([loss.hex() for loss in model.losses])
