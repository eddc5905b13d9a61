"""Choose tokens from logits: greedy or drawn, with log probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """A token, its log probability, and the most probable tokens with theirs where ``top`` of them were requested."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Drawn(Protocol):
    """How the tokens of one sequence are chosen. ``temperature`` 0: the most probable one. ``top``: None for no log probabilities."""

    temperature: float
    top_p: float
    top: int | None

    def number(self) -> float:
        """The next random number of this sequence, from 0 to below 1."""
        ...


def choose(logits: torch.Tensor, wanted: Sequence[Drawn]) -> list[ChosenToken]:
    """A token for each row of ``logits`` [sequences, vocabulary].

    Log probabilities are of the model: before temperature and ``top_p``. A token depends on its row and its sequence's numbers alone.
    """
    tokens = logits.argmax(dim=-1)
    drawn = [row for row, one in enumerate(wanted) if one.temperature > 0]
    if drawn:
        tokens[drawn] = _drawn(logits[drawn], [wanted[row] for row in drawn])
    listed: list[int] = tokens.tolist()
    counts = [one.top for one in wanted if one.top is not None]
    if not counts:
        return [ChosenToken(token) for token in listed]
    logged = torch.log_softmax(logits, dim=-1)
    own = logged.gather(1, tokens[:, None])[:, 0].tolist()
    most = min(max(counts), logits.shape[-1])
    values, indices = (part.tolist() for part in logged.topk(most, dim=-1))
    return [
        ChosenToken(listed[row])
        if one.top is None
        else ChosenToken(
            listed[row], own[row], tuple(zip(indices[row][: one.top], values[row][: one.top], strict=True))
        )
        for row, one in enumerate(wanted)
    ]


def _drawn(logits: torch.Tensor, wanted: Sequence[Drawn]) -> torch.Tensor:
    """By inversion over the tokens in order of probability: the smallest set that has ``top_p`` of it, of which one is drawn."""
    device = logits.device
    temperature = torch.tensor([one.temperature for one in wanted], device=device)
    top_p = torch.tensor([one.top_p for one in wanted], device=device, dtype=torch.float64)
    number = torch.tensor([one.number() for one in wanted], device=device, dtype=torch.float64)
    ordered, tokens = (logits / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    summed = torch.softmax(ordered.double(), dim=-1).cumsum(dim=-1)
    kept = (summed < top_p[:, None]).sum(dim=-1).clamp(max=logits.shape[-1] - 1)
    mass = summed.gather(1, kept[:, None])[:, 0]
    place = (summed <= (number * mass)[:, None]).sum(dim=-1).minimum(kept)
    return tokens.gather(1, place[:, None])[:, 0]
