"""Operators on tensors so small that calling them is most of the work; between them, text is counted in Python."""

import torch
from timers import steps, timed

a, b = torch.randn(24), torch.randn(24)
words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"] * 40


def operators() -> None:
    c = a
    for _ in range(2000):
        c = torch.add(c, b)
        c = torch.mul(c, 0.5)
        c = torch.tanh(c)


def count() -> dict[str, int]:
    found: dict[str, int] = {}
    for _ in range(40):
        for word in words:
            found[word.upper()] = found.get(word.upper(), 0) + len(word)
    return found


for _ in steps():
    with timed("compute"):
        operators()
    with timed("python"):
        count()
