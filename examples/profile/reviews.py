"""Trains a bag-of-words classifier of reviews, with a vocabulary of word pieces.

Runs until it is stopped. --seed changes texts, sizes and with them all times.
"""

from __future__ import annotations

import argparse
import random
import string

import torch
from torch import Tensor, nn

PIECES = 2000


def vocabulary(chance: random.Random) -> dict[str, int]:
    pieces = list(string.ascii_lowercase)
    while len(pieces) < PIECES:
        pieces.append("".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 5))))
    return {piece: k for k, piece in enumerate(pieces)}


def review(chance: random.Random, words: int) -> str:
    return " ".join(
        "".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(words)
    )


class Pieces:
    def __init__(self, known: dict[str, int]) -> None:
        self.known = known

    def encode(self, text: str) -> list[int]:
        found = []
        for word in text.lower().split():
            start = 0
            while start < len(word):
                for end in range(min(len(word), start + 5), start, -1):
                    if (piece := self.known.get(word[start:end])) is not None:
                        found.append(piece)
                        break
                start = end
        return found


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(PIECES, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5))

    def forward(self, pieces: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.bag(pieces, offsets))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.manual_seed(seed)
    chance = random.Random(seed)
    pieces = Pieces(vocabulary(chance))
    texts = [review(chance, 60 + 20 * (seed % 3)) for _ in range(256)]
    model = Classifier(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while True:
        rows = [pieces.encode(text) for text in chance.sample(texts, 32)]
        offsets = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        stars = torch.randint(0, 5, (len(rows),))
        loss = nn.functional.cross_entropy(model(torch.tensor(sum(rows, [])), offsets), stars)  # noqa: RUF017
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
