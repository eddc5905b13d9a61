"""Gradients of a rank: added in the order of microbatches, then over pipelines in the order of pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn


class Peers(Protocol):
    """The ranks of the same stage, one in each pipeline."""

    pipeline: int
    pipelines: int

    def send(self, to: int, tag: str, value: Tensor) -> None: ...
    def recv(self, source: int, tag: str, like: Tensor) -> Callable[[], Tensor]: ...
    def flush(self) -> None: ...


class Sums:
    """Sums of gradients in flat buffers, one for each type; ``views`` has each parameter's by name.

    :meth:`add` may be called in any order of microbatches; they are added in theirs, so that the sum is always the same.
    """

    def __init__(self, parts: Sequence[Mapping[str, nn.Parameter]]) -> None:
        self._names = [list(part) for part in parts]
        every = {name: parameter for part in parts for name, parameter in part.items()}
        self.flats: dict[torch.dtype, Tensor] = {}
        self.views: dict[str, Tensor] = {}
        for dtype in dict.fromkeys(p.dtype for p in every.values()):
            group = {name: p for name, p in every.items() if p.dtype == dtype}
            device = next(iter(group.values())).device
            flat = torch.zeros(sum(p.numel() for p in group.values()), dtype=dtype, device=device)
            at = 0
            for name, p in group.items():
                self.views[name] = flat[at : at + p.numel()].view(p.shape)
                at += p.numel()
            self.flats[dtype] = flat
        self._next: list[int] = []
        self._held: dict[tuple[int, int], Sequence[Tensor | None]] = {}
        self._fresh: set[str] = set()
        self.clear()

    def clear(self) -> None:
        """Start a step."""
        for flat in self.flats.values():
            flat.zero_()
        self._next = [0] * len(self._names)
        self._fresh = set(self.views)
        assert not self._held

    def add(self, part: int, microbatch: int, gradients: Sequence[Tensor | None]) -> None:
        """Gradients of a part's parameters, in their order. Where an earlier microbatch is not added yet, they wait for it."""
        self._held[part, microbatch] = gradients
        while (found := self._held.pop((part, self._next[part]), None)) is not None:
            for name, gradient in zip(self._names[part], found, strict=True):
                if gradient is not None:
                    self._add(name, gradient)
            self._next[part] += 1

    def _add(self, name: str, gradient: Tensor) -> None:
        if name in self._fresh:
            self._fresh.discard(name)
            self.views[name].copy_(gradient)
        else:
            self.views[name].add_(gradient)

    def divide(self, count: int) -> None:
        """From sum to mean."""
        for flat in self.flats.values():
            flat.div_(count)


def reduce(flats: Sequence[Tensor], peers: Peers, tag: str) -> None:
    """Sum flat tensors over pipelines in place, always pipeline 0 + 1 + 2 …, whatever arrives first.

    Each rank adds up one share of each tensor and gives the sum back. On other devices than the CPU the host adds.
    """
    if peers.pipelines == 1:
        return
    for k, flat in enumerate(flats):
        host = flat if flat.device.type == "cpu" else flat.cpu()
        _reduce(host, peers, f"{tag}.{k}")
        if host is not flat:
            flat.copy_(host)


def _reduce(flat: Tensor, peers: Peers, tag: str) -> None:
    count, me = peers.pipelines, peers.pipeline
    ends = [flat.numel() * k // count for k in range(count + 1)]
    shares = [flat[a:b] for a, b in pairwise(ends)]
    others = [p for p in range(count) if p != me]
    parts = {p: peers.recv(p, f"{tag}.part", shares[me]) for p in others}
    sums = {p: peers.recv(p, f"{tag}.sum", shares[p]) for p in others}
    for p in others:
        peers.send(p, f"{tag}.part", shares[p])
    total = parts[0]() if me else shares[me].clone()
    for p in range(1, count):
        total += shares[me] if p == me else parts[p]()
    for p in others:
        peers.send(p, f"{tag}.sum", total)
    for p in others:
        value = sums[p]()
        shares[p].copy_(value)  # its rank has the part that was sent to it
    peers.flush()
    shares[me].copy_(total)
