"""A data loader whose one worker takes longer for a batch than the training step does."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        time.sleep(0.0012)  # reads from a store that is far away
        row = torch.randn(64, 64)
        return (row @ row.T).flatten()[:1024], k % 10


def main() -> None:
    from timers import steps, timed

    loader = iter(DataLoader(Slow(), batch_size=32, num_workers=1))
    model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in steps():
        with timed("data"):
            rows, kinds = next(loader)
        with timed("compute"):
            for _ in range(4):
                loss = nn.functional.cross_entropy(model(rows), kinds)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
