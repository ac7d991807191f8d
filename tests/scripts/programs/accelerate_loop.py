"""Hugging Face accelerate: gradients accumulated over two batches, evaluation, a checkpoint after each epoch."""

import atexit
import sys
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
data = TensorDataset(torch.randn(70, 8), torch.randint(0, 3, (70,)))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
model, optimizer, scheduler, train, test = accelerator.prepare(
    model, optimizer, scheduler, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=10)
)
losses = []
for _ in range(2):
    model.train()
    for x, y in train:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in test:
            guessed, truth = accelerator.gather_for_metrics((model(x).argmax(1), y))
            right += int((guessed == truth).sum())
    accelerator.save_state(sys.argv[1] if sys.argv[1:] else "saved")
accelerator.print([loss.hex() for loss in losses], right)
accelerator.end_training()
