"""A small language model that is slower than it has to be, as programs are that have grown. `make demo-tune` makes it faster."""

import gc
import sys

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
        length = 96
        mask = torch.tril(torch.ones(96, 96, device=x.device))
        scores = self.queries(x) @ self.keys(x).transpose(1, 2) / length
        weights = scores.masked_fill(mask == 0, -1e9).softmax(-1)
        return x + torch.relu(self.out(weights @ x))


class Model(nn.Module):
    def __init__(self, width=32, words=64):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        y = torch.zeros_like(x)
        for k in range(x.size(0)):
            y[k] = x[k] * 2 + 1
        return self.head(y)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = torch.randint(64, (64, 97))
order = torch.randint(64, (STEPS, 16))
vocabulary = [{"word": n} for n in range(60_000)]
total = 0.0
for step in range(STEPS):
    batch = text[order[step]]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    total += loss.item()
    gc.collect()
print(f"loss {total / STEPS:.4f}")
torch.save(model.state_dict(), "model.pt")
