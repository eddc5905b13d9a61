"""Decoders in the forms of GPT-2 and Llama, in plain PyTorch, and the most bytes that its allocator has in use in a training step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unidle.tune.fit.model import DecoderModel


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):
    def __init__(self, model: DecoderModel) -> None:
        super().__init__()
        self.model = model
        h, q, kv, i = (
            model.hidden,
            model.heads * model.head_dim,
            model.kv_heads * model.head_dim,
            model.intermediate,
        )
        norm = RMSNorm if model.gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(h), norm(h)
        self.qkv = (
            nn.ModuleList(nn.Linear(h, n, model.bias) for n in (q, kv, kv))
            if model.gated
            else nn.Linear(h, q + 2 * kv, model.bias)
        )
        self.out = nn.Linear(q, h, model.bias)
        self.gate = nn.Linear(h, i, model.bias) if model.gated else None
        self.up, self.down = nn.Linear(h, i, model.bias), nn.Linear(i, h, model.bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        y = self.norm1(x)
        parts = (
            [one(y) for one in self.qkv]
            if isinstance(self.qkv, nn.ModuleList)
            else self.qkv(y).split(self.model.hidden, -1)
        )
        q, k, v = (one.view(b, t, -1, self.model.head_dim).transpose(1, 2) for one in parts)
        if self.model.gated:
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            again = self.model.heads // self.model.kv_heads
            if again > 1:
                k, v = k.repeat_interleave(again, 1), v.repeat_interleave(again, 1)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        inner = (
            functional.silu(self.gate(y)) * self.up(y)
            if self.gate is not None
            else functional.gelu(self.up(y))
        )
        result: Tensor = x + self.down(inner)
        return result


class Language(nn.Module):
    def __init__(self, model: DecoderModel, sequence: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(model.vocabulary, model.hidden)
        self.where = nn.Embedding(model.positions, model.hidden) if model.positions else None
        self.layers = nn.ModuleList(Layer(model) for _ in range(model.layers))
        self.norm = RMSNorm(model.hidden) if model.gated else nn.LayerNorm(model.hidden)
        self.head = nn.Linear(model.hidden, model.vocabulary, False)
        if model.tied:
            self.head.weight = self.embed.weight
        angle = torch.outer(
            torch.arange(sequence), 10_000.0 ** -(torch.arange(0, model.head_dim, 2) / model.head_dim)
        ).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens: Tensor, recompute: bool) -> Tensor:
        x = self.embed(tokens)
        if self.where is not None:
            x = x + self.where(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            if recompute:
                x = torch.utils.checkpoint.checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


def measured(model: DecoderModel, batch: int, sequence: int, recompute: bool) -> tuple[int, int]:
    """Parameters, and the most bytes in use in the second step of AdamW: what stays, and what the allocator counted in the step."""
    torch.manual_seed(0)
    program = Language(model, sequence)
    optimizer = torch.optim.AdamW(program.parameters())
    tokens = torch.randint(model.vocabulary, (batch, sequence + 1))

    def step() -> None:
        logits = program(tokens[:, :-1], recompute)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    step()
    held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in program.parameters()}
    held |= {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for state in optimizer.state.values() for one in state.values() if isinstance(one, Tensor)
    }  # fmt: skip
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    now = most = 0
    events = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
    for one in sorted(events, key=lambda one: one.start_ns()):
        now += one.nbytes()
        most = max(most, now)
    return sum(one.numel() for one in program.parameters()), sum(held.values()) + most
