"""Make the run of this schema version that stays in the tests for ever: ``python tools/keep_run.py``.

A small program of two ranks with as many kinds of record as a CPU can give, observed by ``allpull run``. Names of this
machine are replaced, and what only the running job needed is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from allpull.rundir import layout
from allpull.schema.base import VERSION

ROOT = Path(__file__).resolve().parent.parent
DROPPED = (layout.HOOK, layout.LIVE, layout.PROCESSES, layout.TRACES)
NUMBER = "00000000-0000-4000-8000-000000000001"
PROGRAM = """
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(400, 8), torch.randint(0, 3, (400,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for number, (x, y) in enumerate(loader):
        time.sleep(0.05)
        loss = nn.functional.cross_entropy(model(x), y) * (float("inf") if number == 12 else 1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            for x, y in loader:
                net(x)
        torch.save(net.state_dict(), "net.pt")
    dist.barrier()
dist.destroy_process_group()
"""


def main() -> None:
    """Run the program and keep its records in ``tests/runs``."""
    target = ROOT / "tests" / "runs" / f"v{VERSION}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kept.py").write_text(PROGRAM, encoding="utf-8")
        command = [sys.executable, "-m", "allpull", "run", "-n", "2", "--out", "runs", "--trace", "every=30,steps=2"]
        command += ["--set", "observe.counter_interval_s=0.2", "--", "kept.py"]
        subprocess.run(command, cwd=folder, env={**os.environ, "ALLPULL_HOST": "node1"}, check=True)
        run = next((Path(folder) / "runs").iterdir())
        for name in DROPPED:
            shutil.rmtree(run / name, ignore_errors=True)
        for path in [one for one in run.rglob("*") if one.is_file()]:
            path.write_text(cleaned(path.read_text(encoding="utf-8"), folder), encoding="utf-8")
            path.rename(path.with_name(path.name.replace(layout.slug(socket.gethostname()), "node1")))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(run, target)
    print(target)


def cleaned(text: str, folder: str) -> str:
    """``text`` without names of this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    text = text.replace(boot, NUMBER).replace(str(Path(folder).resolve()), "/home/user").replace(folder, "/home/user")
    text = text.replace(sys.prefix, "/home/user/.venv").replace(str(ROOT), "/home/user/allpull")
    host = re.escape(socket.gethostname())
    return re.sub(rf'"{host}"', '"node1"', text)


if __name__ == "__main__":
    main()
