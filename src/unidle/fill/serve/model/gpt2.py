"""GPT-2: LayerNorm, learned positions. Its matrices are stored as [inputs, outputs]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from unidle.fill.serve.model.causal import ACTIVATION, Activations, Attend
from unidle.fill.serve.model.config import ModelConfig
from unidle.fill.serve.model.weights import Weights

_Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Each a weight and a bias."""

    before: _Pair
    qkv: _Pair
    out: _Pair
    after: _Pair
    up: _Pair
    down: _Pair


class Gpt2:
    """A model in the form of ``GPT2LMHeadModel``."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        hidden = config.hidden
        self._embedding = weights.take("wte.weight", config.vocabulary, hidden)
        self._places = weights.take("wpe.weight", config.context, hidden)
        self._head = (
            self._embedding if config.tied else weights.take("lm_head.weight", config.vocabulary, hidden)
        )
        self._norm = (weights.take("ln_f.weight", hidden), weights.take("ln_f.bias", hidden))
        self._layers = [_layer(config, weights, f"h.{index}.") for index in range(config.layers)]
        self.weight_bytes = weights.bytes

    def begin(self, tokens: torch.Tensor, positions: torch.Tensor) -> Activations:
        x = functional.embedding(tokens, self._embedding) + functional.embedding(positions, self._places)
        return Activations(x, positions)

    def layer(self, index: int, state: Activations, attend: Attend) -> None:
        own, config = self._layers[index], self.config
        tokens = state.x.shape[0]
        qkv = functional.linear(self._normed(state.x, own.before), *own.qkv).view(
            tokens, 3, config.heads, config.head_dim
        )
        seen = attend(index, qkv[:, 0], qkv[:, 1], qkv[:, 2])
        x = state.x + functional.linear(seen.reshape(tokens, -1), *own.out)
        inner = ACTIVATION[config.activation](functional.linear(self._normed(x, own.after), *own.up))
        state.x = x + functional.linear(inner, *own.down)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self._normed(x, self._norm), self._head).float()

    def _normed(self, x: torch.Tensor, norm: _Pair) -> torch.Tensor:
        return functional.layer_norm(x, (self.config.hidden,), *norm, eps=self.config.norm_eps)


def _layer(config: ModelConfig, weights: Weights, at: str) -> _Layer:
    hidden, inner = config.hidden, config.inner

    def norm(name: str) -> _Pair:
        return weights.take(f"{at}{name}.weight", hidden), weights.take(f"{at}{name}.bias", hidden)

    def matrix(name: str, inputs: int, outputs: int) -> _Pair:
        stored = weights.take(f"{at}{name}.weight", inputs, outputs)
        return stored.t().contiguous(), weights.take(f"{at}{name}.bias", outputs)

    return _Layer(
        before=norm("ln_1"),
        qkv=matrix("attn.c_attn", hidden, 3 * hidden),
        out=matrix("attn.c_proj", hidden, hidden),
        after=norm("ln_2"),
        up=matrix("mlp.c_fc", hidden, inner),
        down=matrix("mlp.c_proj", inner, hidden),
    )
