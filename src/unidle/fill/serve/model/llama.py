"""Llama: RMSNorm, rotary positions, grouped keys and values, a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from unidle.fill.serve.model.causal import ACTIVATION, Activations, Attend, frequencies, turned
from unidle.fill.serve.model.config import ModelConfig, Rotary
from unidle.fill.serve.model.weights import Weights


@dataclass(frozen=True, slots=True)
class _Layer:
    """Projections that have the same input are one matrix: ``qkv``, ``gate_up``."""

    before: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    after: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class Llama:
    """A model in the form of ``LlamaForCausalLM``."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        wide = (config.vocabulary, config.hidden)
        self._embedding = weights.take("embed_tokens.weight", *wide)
        self._norm = weights.take("norm.weight", config.hidden)
        self._head = self._embedding if config.tied else weights.take("lm_head.weight", *wide)
        self._layers = [_layer(config, weights, f"layers.{index}.") for index in range(config.layers)]
        self.weight_bytes = weights.bytes
        rotary = config.rotary or Rotary(10000.0)
        self._frequencies = frequencies(rotary, config.head_dim, self._embedding.device)

    def begin(self, tokens: torch.Tensor, positions: torch.Tensor) -> Activations:
        angle = positions.float()[:, None] * self._frequencies
        angle = torch.cat((angle, angle), dim=-1)[:, None, :]
        x = functional.embedding(tokens, self._embedding)
        return Activations(x, positions, (angle.cos().to(x.dtype), angle.sin().to(x.dtype)))

    def layer(self, index: int, state: Activations, attend: Attend) -> None:
        own, config = self._layers[index], self.config
        tokens = state.x.shape[0]
        assert state.turn is not None
        qkv = functional.linear(self._normed(state.x, own.before), own.qkv, own.qkv_bias).view(
            tokens, -1, config.head_dim
        )
        heads, both = config.heads, config.heads + config.kv_heads
        q, k, v = qkv[:, :heads], qkv[:, heads:both], qkv[:, both:]
        seen = attend(index, turned(q, state.turn), turned(k, state.turn), v)
        x = state.x + functional.linear(seen.reshape(tokens, -1), own.out, own.out_bias)
        gate, up = functional.linear(self._normed(x, own.after), own.gate_up, own.gate_up_bias).chunk(
            2, dim=-1
        )
        state.x = x + functional.linear(ACTIVATION[config.activation](gate) * up, own.down, own.down_bias)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self._normed(x, self._norm), self._head).float()

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_eps)
        return weight * wide.to(x.dtype)


def _layer(config: ModelConfig, weights: Weights, at: str) -> _Layer:
    hidden, inner = config.hidden, config.inner
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def bias(present: bool, **rows: int) -> torch.Tensor | None:
        return (
            torch.cat([weights.take(f"{at}{name}.bias", size) for name, size in rows.items()])
            if present
            else None
        )

    def matrix(columns: int, **rows: int) -> torch.Tensor:
        return torch.cat([weights.take(f"{at}{name}.weight", size, columns) for name, size in rows.items()])

    attention = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
    mlp = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
    return _Layer(
        before=weights.take(f"{at}input_layernorm.weight", hidden),
        qkv=matrix(hidden, **attention),
        qkv_bias=bias(config.attention_bias, **attention),
        out=matrix(queries, **{"self_attn.o_proj": hidden}),
        out_bias=bias(config.attention_bias, **{"self_attn.o_proj": hidden}),
        after=weights.take(f"{at}post_attention_layernorm.weight", hidden),
        gate_up=matrix(hidden, **mlp),
        gate_up_bias=bias(config.mlp_bias, **mlp),
        down=matrix(inner, **{"mlp.down_proj": hidden}),
        down_bias=bias(config.mlp_bias, **{"mlp.down_proj": hidden}),
    )
