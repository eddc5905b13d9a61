"""Training scripts that the changes of :mod:`_tune_cheats` are made to."""

from __future__ import annotations

SCRIPT = """import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3
torch.manual_seed(0)
np.random.seed(0)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(width, 2)

    def forward(self, x):
        scale = torch.arange(16, device=x.device) / 16
        h = torch.relu(self.first(x * scale))
        return self.last(self.drop(h))


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
    model.train()
    return right


def main():
    data = TensorDataset(torch.randn(512, 16), torch.randint(0, 2, (512,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = Net(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    losses = []
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        for step, (x, y) in enumerate(loader):
            weight = torch.tensor([1.0, 2.0])
            optimizer.zero_grad()
            out = model(x)
            loss = loss_fn(out * weight, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            print(epoch, step, loss.item())
        print("accuracy", evaluate(model, loader))
        torch.save(model.state_dict(), f"epoch{epoch}.pt")
    assert losses[-1] < 1
    print("seconds", time.perf_counter() - start)


if __name__ == "__main__":
    main()
"""

LANGUAGE = """import time
import torch
import torch.nn.functional as F
from torch import nn

block_size = 64
batch_size = 8
max_iters = 200
torch.manual_seed(1337)
text = open("data/input.txt").read()
chars = sorted(set(text))
codes = {c: i for i, c in enumerate(chars)}
tokens = torch.tensor([codes[c] for c in text])


def get_batch():
    at = torch.randint(len(tokens) - block_size, (batch_size,))
    x = torch.stack([tokens[i : i + block_size] for i in at])
    y = torch.stack([tokens[i + 1 : i + block_size + 1] for i in at])
    return x, y


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.tril(torch.ones(T, T))
        a = q @ k.transpose(-2, -1) / C**0.5
        a = a.masked_fill(mask == 0, float("-inf"))
        return self.out(F.softmax(a, -1) @ v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(chars), 64)
        self.attention = Attention(64)
        self.head = nn.Linear(64, len(chars))

    def forward(self, x):
        return self.head(self.attention(self.embed(x)))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for it in range(max_iters):
    t0 = time.time()
    x, y = get_batch()
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 50 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    print(it, loss.item(), time.time() - t0)
"""

VISION = """import argparse
import random
from timeit import default_timer as timer

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, root, augment=True):
        self.items = torch.load(root)
        self.augment = augment

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        image, label = self.items[k]
        if self.augment and random.random() < 0.5:
            image = image.flip(-1)
        return image.float() / 255, label


def train(model, loader, optimizer, scheduler, device, args):
    total = torch.zeros((), device=device)
    for image, label in loader:
        image, label = image.to(device), label.to(device)
        mean = torch.tensor([0.5]).to(device)
        loss = nn.functional.cross_entropy(model(image - mean), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    random.seed(7)
    torch.manual_seed(7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(5408, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    loader = DataLoader(Images("train.pt"), batch_size=args.batch_size, shuffle=True)
    begin = timer()
    for epoch in range(args.epochs):
        print(epoch, train(model, loader, optimizer, scheduler, device, args))
        torch.save(model.state_dict(), "model.pt")
    print(timer() - begin)


main()
"""

SUMMARIES = """import json
from datetime import datetime
import torch
from torch.utils.data import DataLoader
from pathlib import Path

MAX_LEN = 128


class Lines(torch.utils.data.Dataset):
    def __init__(self, path, tokenizer):
        self.rows = [json.loads(line) for line in Path(path).open()]
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return torch.tensor(self.tokenizer.encode(self.rows[k]["text"])[:MAX_LEN])


def pad(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.seen = 0

    def positions(self, n):
        return torch.cat([torch.tensor([float(i)]) for i in range(n)])

    def train_step(self, batch):
        where = self.positions(batch.shape[1])
        loss = self.model(batch, where).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seen += batch.shape[0]
        return loss

    def run(self, epochs):
        for _ in range(epochs):
            began = datetime.now()
            history = torch.tensor([])
            for batch in self.loader:
                history = torch.cat([history, self.train_step(batch).detach()[None]])
            assert torch.isfinite(history).all()
            print(datetime.now() - began, history.mean())
            torch.save(self.model, "model.pt")


def make(model, tokenizer):
    torch.manual_seed(11)
    loader = DataLoader(Lines("lines.jsonl", tokenizer), batch_size=16, shuffle=True, collate_fn=pad)
    return Trainer(model, torch.optim.AdamW(model.parameters(), 1e-4, (0.9, 0.95)), loader)
"""
