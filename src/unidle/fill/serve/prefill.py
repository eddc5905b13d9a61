"""Prefill of one prompt in pieces: a chunk of its tokens through one layer at a time.

The chunk plan is fixed: chunk i has tokens i * ``chunk_tokens`` to (i + 1) * ``chunk_tokens``. Results depend on it and the prompt alone,
so a prompt that was prefilled in many waits has the same bits as one that was not interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unidle.fill.serve.kv.cache import ChunkAttention, PagedCache
from unidle.fill.serve.model.causal import Activations, CausalModel
from unidle.fill.serve.piece_times import PieceKind


class PromptPrefill:
    """A prompt on its way through the model. ``run`` is called until ``done``; then ``logits`` has those of the next token.

    State between pieces is in this object: a piece leaves no mode, generator or thread behind.
    """

    def __init__(
        self,
        model: CausalModel,
        cache: PagedCache,
        blocks: Sequence[int],
        tokens: Sequence[int],
        chunk_tokens: int,
    ) -> None:
        self._model = model
        self._cache = cache
        self._blocks = blocks
        self._tokens = torch.tensor(tokens, dtype=torch.int64)
        self._chunk = chunk_tokens
        self._state: Activations | None = None
        self._attend: ChunkAttention | None = None
        self.begin = 0
        self.layer = 0
        self.logits: torch.Tensor | None = None

    @property
    def end(self) -> int:
        """Where the current chunk ends."""
        return min(self.begin + self._chunk, len(self._tokens))

    @property
    def done(self) -> bool:
        return self.logits is not None

    @property
    def last_layer(self) -> bool:
        """The next piece completes a chunk."""
        return self.layer == self._model.config.layers - 1

    @property
    def kind(self) -> PieceKind:
        """Of the next piece."""
        if self.last_layer:
            return "final" if self.end == len(self._tokens) else "last"
        return "first" if self.layer == 0 else "inner"

    def run_chunk(self) -> None:
        """All layers of the current chunk."""
        self.run()
        while self.layer:
            self.run()

    @torch.inference_mode()
    def run(self) -> None:
        """The current chunk through the next layer; with the last layer of the last chunk, the logits [vocabulary]."""
        if self._state is None:
            places = torch.arange(self.begin, self.end)
            device = self._cache.device
            self._state = self._model.begin(self._tokens[self.begin : self.end].to(device), places.to(device))
            self._attend = ChunkAttention(self._cache, self._blocks, self.begin, self.end)
        assert self._attend is not None
        self._model.layer(self.layer, self._state, self._attend)
        self.layer += 1
        if self.layer < self._model.config.layers:
            return
        if self.end == len(self._tokens):
            self.logits = self._model.logits(self._state.x[-1:])[0]
        self.begin, self.layer, self._state, self._attend = self.end, 0, None, None
        if self._cache.device.type == "cuda":
            torch.cuda.synchronize(self._cache.device)  # a piece ends when its work has ended
