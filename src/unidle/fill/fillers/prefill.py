"""Prefill of prompts: a piece is one layer of a transformer over one chunk of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unidle.errors import BadInput
from unidle.fill.fillers.lengths import Lengths
from unidle.fill.fillers.results import Results
from unidle.fill.fillers.share import share
from unidle.fill.fillers.transformer import Caches, Transformer, TransformerShape
from unidle.fill.sliced import FillPiece, Room


@dataclass(slots=True)
class _Prompt:
    number: int
    tokens: Tensor
    caches: Caches
    start: int = 0  # of the current chunk
    layer: int = 0
    x: Tensor | None = None
    spent_ns: int = 0


class Prefill:
    """Prompts of a file, one a line (their bytes are the tokens), or ``count`` random ones of ``tokens`` tokens.

    ``out``: a line of JSON for each prompt, with its number and the greedy next token; ``{index}`` in it is the number of the filler. Prompts that it
    has already are left out, so a filler continues where one before it was ended. ``length_us``: how long a piece takes on the device that ``pace: true``
    imitates; default: what it computes here.
    """

    def __init__(
        self,
        out: str,
        prompts: str | None = None,
        *,
        count: int = 1_000_000,
        tokens: int = 256,
        chunk: int = 64,
        model: dict[str, int] | None = None,
        seed: int = 0,
        length_us: float | None = None,
    ) -> None:
        torch.set_num_threads(1)
        if chunk < 1:
            raise BadInput(
                "must be at least 1", field="arguments.chunk", value=chunk, remedy="for instance 64"
            )
        self._model = Transformer(TransformerShape(**(model or {})), seed)
        self._stated_ns = None if length_us is None else round(length_us * 1000)
        self._chunk, self._seed, self._lengths = chunk, seed, Lengths()
        self._given = Path(prompts).read_bytes().splitlines() if prompts else None
        self._count, self._size = (len(self._given) if self._given is not None else count), tokens
        self._out = Results(out, "prompt")
        self._numbers = self._left()
        self._next = next(self._numbers, None)
        self._at: _Prompt | None = None
        self._warm_up()

    @property
    def finished(self) -> bool:
        return self._at is None and self._next is None

    def next_piece(self, _room: Room) -> FillPiece | None:
        at = self._at
        if at is None:
            if self._next is None:
                return None
            self._at = at = self._begun(self._next)
        tokens = min(self._chunk, len(at.tokens) - at.start)
        last = at.layer == self._model.shape.layers - 1 and at.start + tokens == len(at.tokens)
        memory = self._model.kv_bytes(at.start + tokens)
        length_ns = self._stated_ns or self._lengths.of(self._kind(at, tokens))
        return FillPiece(length_ns, memory, len(at.tokens) if last else 0, at.number)

    def run(self) -> None:
        at = self._at
        assert at is not None
        tokens = min(self._chunk, len(at.tokens) - at.start)
        at.spent_ns += self._lengths.timed(self._kind(at, tokens), lambda: self._layer(at, tokens))

    def give_up(self) -> int:
        lost, self._at = (self._at.spent_ns if self._at is not None else 0), None
        return lost

    def _kind(self, at: _Prompt, tokens: int) -> tuple[int, int]:
        return tokens, at.start // self._chunk

    def _layer(self, at: _Prompt, tokens: int) -> None:
        if at.x is None:
            at.x = self._model.embed(at.tokens[at.start : at.start + tokens], at.start)
        at.x = self._model.layer(at.layer, at.x, at.caches)
        at.layer += 1
        if at.layer < self._model.shape.layers:
            return
        end = at.start + tokens
        if end == len(at.tokens):
            answer = {"prompt": at.number, "tokens": end, "next": self._model.next_token(at.x)}
            self._out.add(answer)
            self._at, self._next = None, next(self._numbers, None)
        at.start, at.layer, at.x = end, 0, None

    def _warm_up(self) -> None:
        """PyTorch's first calls take many times as long as later ones: they are made while the filler loads."""
        for _ in range(3):
            caches = self._model.caches()
            x = self._model.layer(
                0, self._model.embed(torch.zeros(self._chunk, dtype=torch.int64), 0), caches
            )
            self._model.layer(0, x, caches)

    def _left(self) -> Iterator[int]:
        index, count = share()
        return (number for number in range(index, self._count, count) if number not in self._out.done)

    def _begun(self, number: int) -> _Prompt:
        if self._given is not None:
            tokens = torch.tensor(list(self._given[number]) or [0])[: self._model.shape.context]
        else:
            chance = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
            tokens = torch.randint(self._model.shape.vocabulary, (self._size,), generator=chance)
        return _Prompt(number, tokens, self._model.caches())
