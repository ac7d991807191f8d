"""PyTorch Geometric: batches of small graphs, classified by DDP, and evaluated."""

import atexit
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

atexit.register(time.sleep, 0.2)  # Gloo's threads may need Python once more, and abort if it is on its way out
dist.init_process_group("gloo")
torch.manual_seed(0)


class Net(torch.nn.Module):
    """Three classes of graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = GCNConv(8, 16), GCNConv(16, 16), torch.nn.Linear(16, 3)

    def forward(self, x, edges, graph):
        x = self.second(self.first(x, edges).relu(), edges).relu()
        return self.last(global_mean_pool(x, graph))


def graph():
    """Twenty nodes, sixty edges, a class."""
    edges = torch.randint(0, 20, (2, 60))
    return Data(x=torch.randn(20, 8), edge_index=edges, y=torch.randint(0, 3, (1,)))


graphs = [graph() for _ in range(70)]
loader = DataLoader(graphs, batch_size=16, sampler=DistributedSampler(graphs, shuffle=False))
model = DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(2):
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(graphs[:20], batch_size=20):
            model.module(batch.x, batch.edge_index, batch.batch)
    dist.barrier()
if dist.get_rank() == 0:
    print([loss.hex() for loss in losses])
dist.destroy_process_group()
