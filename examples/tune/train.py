"""A small sequence model that is slower than it has to be, as programs are that have grown. `make demo-tune` makes it faster."""

import sys

import numpy as np
import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
torch.manual_seed(0)
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.queries = nn.Linear(width, width)
        self.keys = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        mask = torch.tril(torch.ones(1024, 1024, device=x.device))[:64, :64]
        scores = self.queries(x) @ self.keys(x).transpose(1, 2) / 8
        weights = scores.masked_fill(mask == 0, -1e9).softmax(-1)
        return x + torch.relu(self.out(weights @ x))


class Model(nn.Module):
    def __init__(self, width=32, signals=64):
        super().__init__()
        self.enter = nn.Linear(signals, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, signals)

    def forward(self, signals):
        x = self.enter(signals)
        for block in self.blocks:
            x = block(x)
        y = torch.zeros_like(x)
        for k in range(x.size(0)):
            y[k] = x[k] * 2 + 1
        return self.head(y)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
chance = np.random.RandomState(0)
records = [np.asarray(chance.randn(65, 64), dtype="float32") for _ in range(128)]
order = chance.randint(128, size=(STEPS, 24))
for step in range(STEPS):
    batch = torch.tensor([records[n] for n in order[step]])
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch[:, :-1]), batch[:, 1:])
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
torch.save(model.state_dict(), "model.pt")
