"""What prefill costs on a pipeline of devices: a transformer from its shape, as span's cost model has it.

A prompt of L tokens costs 24 L H^2 + 4 L^2 H operations a layer (``unidle.span.model.cost``). A chunk from token a to token b
costs the difference of two such prompts, so that the chunks of a prompt cost exactly what the whole prompt does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from unidle.span.model.cost import PARAMETERS, wire_ns

WORKSPACE: Final = (
    8  # values per token and channel that a running chunk holds: inputs, queries, a part of the hidden layer
)


@dataclass(frozen=True)
class InferenceModel:
    """A transformer on ``pp`` devices. ``tflops``: 10^12 operations a second of one device.

    ``kv_share``: width of keys and values over ``hidden`` (below 1 with grouped queries). ``local_gbps``: between its
    devices and to the decoding ones, 10^9 bit/s, None takes no time. ``memory_gb_per_s``, ``decode_batch``: of a device that
    decodes elsewhere, 10^9 bytes a second and requests at a time.
    """

    layers: int
    hidden: int
    pp: int
    tflops: float
    bytes_per_value: int = 2
    kv_share: float = 1.0
    local_gbps: float | None = None
    memory_gb_per_s: float = 2000.0
    decode_batch: int = 16

    @cached_property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each stage; the first stages take the remainder."""
        return tuple(self.layers // self.pp + (s < self.layers % self.pp) for s in range(self.pp))

    @cached_property
    def _linear(self) -> float:
        return 24 * self.hidden**2 / (self.tflops * 1e3)

    @cached_property
    def _quadratic(self) -> float:
        return 4 * self.hidden / (self.tflops * 1e3)

    def layer_ns(self, start: int, end: int) -> int:
        """One layer over the tokens from ``start`` to before ``end``."""
        tokens = end - start
        return round(tokens * (self._linear + (end + start) * self._quadratic)) or 1

    def weight_bytes(self) -> int:
        """Weights on the fullest device."""
        return self.stage_layers[0] * PARAMETERS * self.hidden**2 * self.bytes_per_value

    def kv_bytes(self, tokens: int) -> int:
        """Keys and values of a prompt on the fullest device."""
        return round(2 * self.stage_layers[0] * tokens * self.hidden * self.kv_share * self.bytes_per_value)

    def workspace_bytes(self, tokens: int) -> int:
        """What a running chunk of so many tokens holds in addition."""
        return WORKSPACE * tokens * self.hidden * self.bytes_per_value

    def hop_ns(self, tokens: int) -> int:
        """Activations of a chunk from one stage to the next."""
        return wire_ns(tokens * self.hidden * self.bytes_per_value, self.local_gbps) if self.pp > 1 else 0

    def handoff_ns(self, tokens: int) -> int:
        """Keys and values from the fullest device to the one that decodes."""
        return wire_ns(self.kv_bytes(tokens), self.local_gbps)

    def token_ns(self, tokens: int) -> int:
        """One further token on a device that decodes: all weights and the batch's keys and values are read once."""
        weights = self.layers * PARAMETERS * self.hidden**2 * self.bytes_per_value
        held = 2 * self.layers * tokens * self.hidden * self.kv_share * self.bytes_per_value
        return round((weights + self.decode_batch * held) / self.memory_gb_per_s)


class PrefillChunk(NamedTuple):
    """A part of a prompt: tokens, nanoseconds of one layer, and of the hop to the next stage."""

    tokens: int
    layer_ns: int
    hop_ns: int


def chunks_of(model: InferenceModel, tokens: int, most: int | None) -> tuple[PrefillChunk, ...]:
    """A prompt in near-equal chunks of at most ``most`` tokens; None: the whole prompt."""
    count = 1 if most is None else -(-tokens // most)
    found, start = [], 0
    for k in range(1, count + 1):
        end = k * tokens // count
        found.append(PrefillChunk(end - start, model.layer_ns(start, end), model.hop_ns(end - start)))
        start = end
    return tuple(found)
