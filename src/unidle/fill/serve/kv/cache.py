"""Keys and values of all sequences in blocks of tokens, and attention over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from unidle.fill.serve.model.config import ModelConfig


class PagedCache:
    """``kv``: [layers, 2, blocks, block_tokens, kv_heads, head_dim]. A sequence's blocks, in order, are its table."""

    def __init__(
        self, config: ModelConfig, blocks: int, block_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.block_tokens = block_tokens
        self.config = config
        self.device = device
        shape = (config.layers, 2, blocks, block_tokens, config.kv_heads, config.head_dim)
        self.kv = torch.zeros(shape, device=device, dtype=dtype)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer as [slots, kv_heads, head_dim]: views into the cache."""
        keys, values = self.kv[index]
        return keys.flatten(0, 1), values.flatten(0, 1)

    def slots(self, blocks: Sequence[int], begin: int, end: int) -> torch.Tensor:
        """Where the tokens ``begin`` to ``end`` of a sequence are stored."""
        table = torch.tensor(blocks, dtype=torch.int64)
        places = torch.arange(begin, end)
        size = self.block_tokens
        return (table[places // size] * size + places % size).to(self.device)

    def copy(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Copy blocks, of all layers."""
        into = torch.tensor(to, dtype=torch.int64, device=self.device)
        self.kv[:, :, into] = self.kv[:, :, torch.tensor(source, dtype=torch.int64, device=self.device)]

    def read(self, blocks: Sequence[int], tokens: int) -> torch.Tensor:
        """The first tokens of a sequence: [layers, 2, tokens, kv_heads, head_dim]."""
        return self.kv.flatten(2, 3)[:, :, self.slots(blocks, 0, tokens)]

    def write(self, blocks: Sequence[int], kv: torch.Tensor) -> None:
        """The reverse of :meth:`read`."""
        self.kv.view(*self.kv.shape[:2], -1, *self.kv.shape[4:])[:, :, self.slots(blocks, 0, kv.shape[2])] = (
            kv.to(self.kv)
        )


class ChunkAttention:
    """Attention of a chunk of one prompt: tokens ``begin`` to ``end``, over those before and, causally, over themselves.

    Its results depend on the prompt, ``begin`` and ``end`` alone: not on which blocks it has, or what else is in the cache.
    """

    def __init__(self, cache: PagedCache, blocks: Sequence[int], begin: int, end: int) -> None:
        self._cache = cache
        slots = cache.slots(blocks, 0, end)
        self._all, self._new = slots, slots[begin:]
        places = torch.arange(end, device=cache.device)
        self._mask = places[None, :] <= places[begin:, None]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self._cache.layer(layer)
        keys[self._new] = k
        values[self._new] = v
        config = self._cache.config
        seen = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys[self._all].transpose(0, 1)[None], values[self._all].transpose(0, 1)[None],
            attn_mask=self._mask[None, None], enable_gqa=config.heads != config.kv_heads,
        )  # fmt: skip
        return seen[0].transpose(0, 1)


class DecodeAttention:
    """Attention of one new token of each of many sequences. ``tables``: their blocks; ``lengths``: tokens with the new one."""

    def __init__(self, cache: PagedCache, tables: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        self._cache = cache
        size = cache.block_tokens
        longest = max(lengths)
        most = -(-longest // size)
        rows = torch.tensor(
            [[*table[:most], *[0] * (most - len(table))] for table in tables], dtype=torch.int64
        )
        slots = (rows[:, :, None] * size + torch.arange(size)).flatten(1)[:, :longest]
        ends = torch.tensor(lengths, dtype=torch.int64)
        self._new = slots.gather(1, ends[:, None] - 1)[:, 0].to(cache.device)
        self._all = slots.to(cache.device)
        self._mask = (torch.arange(longest) < ends[:, None])[:, None, None, :].to(cache.device)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self._cache.layer(layer)
        keys[self._new] = k
        values[self._new] = v
        config = self._cache.config
        seen = functional.scaled_dot_product_attention(
            q[:, :, None], keys[self._all].transpose(1, 2), values[self._all].transpose(1, 2),
            attn_mask=self._mask, enable_gqa=config.heads != config.kv_heads,
        )  # fmt: skip
        return seen[:, :, 0]
