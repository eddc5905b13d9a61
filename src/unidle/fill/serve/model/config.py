"""``config.json`` of a Llama- or GPT-2-form model.

Names and defaults are those of Hugging Face's ``LlamaConfig`` and ``GPT2Config``; rotary scaling of the kinds ``default``,
``linear`` and ``llama3`` is known. What would change results and is not known here is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from unidle.errors import BadInput

ACTIVATIONS: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
_DTYPES: Final = ("float32", "float16", "bfloat16")
_TINIEST: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding. ``scaling``: parameters of ``kind``, as in ``config.json``."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a model. ``context``: most tokens of prompt and answer; ``inner``: width of the MLP; ``eos``: tokens that end an answer."""

    form: Literal["llama", "gpt2"]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    context: int
    norm_eps: float
    activation: str
    dtype: str
    tied: bool
    eos: tuple[int, ...]
    rotary: Rotary | None = None
    attention_bias: bool = False
    mlp_bias: bool = False


class _Fields:
    """Typed fields of ``config.json``. Errors: :class:`unidle.errors.BadInput` with the field's name."""

    def __init__(self, raw: Mapping[str, Any], file: str) -> None:
        self.raw = raw
        self.file = file

    def bad(
        self, name: str, problem: str, remedy: str = "use a config.json as Hugging Face writes it"
    ) -> BadInput:
        return BadInput(f"{problem} ({self.file})", field=name, value=self.raw.get(name), remedy=remedy)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.bad(name, "must be a whole number above 0")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not _TINIEST <= value < 1e15:
            raise self.bad(name, "must be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw.get(name, default)
        if not isinstance(value, bool):
            raise self.bad(name, "must be true or false")
        return value

    def word(self, name: str, default: str, known: tuple[str, ...]) -> str:
        value = self.raw.get(name, default)
        if value not in known:
            raise self.bad(name, "is not supported", f"use one of {', '.join(known)}")
        return str(value)

    def must_be(self, name: str, only: object) -> None:
        if self.raw.get(name, only) != only:
            raise self.bad(name, f"is not supported; only {json.dumps(only)} is", "serve another model")


def read_config(directory: Path) -> ModelConfig:
    """The configuration of the model in ``directory``. Errors: :class:`unidle.errors.BadInput`."""
    raw = read_object(directory / "config.json")
    if not raw:
        raise BadInput(
            "has no config.json",
            field="--model",
            value=str(directory),
            remedy="name a directory as save_pretrained() writes it",
        )
    fields = _Fields(raw, str(directory / "config.json"))
    form = fields.word("model_type", "", ("llama", "gpt2"))
    eos = _tokens(
        fields, read_object(directory / "generation_config.json").get("eos_token_id", raw.get("eos_token_id"))
    )
    return _llama(fields, eos) if form == "llama" else _gpt2(fields, eos)


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Errors: :class:`unidle.errors.BadInput`."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be read: {error}", field=str(file), remedy="copy the model again") from error
    if not isinstance(value, dict):
        raise BadInput("must be a JSON object", field=str(file), remedy="copy the model again")
    return value


def _tokens(fields: _Fields, value: object) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in listed):
        raise fields.bad("eos_token_id", "must be a token or a list of tokens")
    return tuple(listed)


def _dtype(fields: _Fields) -> str:
    name = "dtype" if "dtype" in fields.raw else "torch_dtype"
    return fields.word(name, "float32", _DTYPES) if fields.raw.get(name) is not None else "float32"


def _llama(fields: _Fields, eos: tuple[int, ...]) -> ModelConfig:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if fields.raw.get("head_dim") is None and hidden % heads:
        raise fields.bad("num_attention_heads", f"must divide hidden_size {hidden}")
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", f"must divide num_attention_heads {heads}")
    head_dim = fields.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise fields.bad("head_dim", "must be even")
    fields.must_be("partial_rotary_factor", 1.0)
    return ModelConfig(
        form="llama", layers=fields.count("num_hidden_layers"), hidden=hidden, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, inner=fields.count("intermediate_size"), vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", 2048), norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.word("hidden_act", "silu", ACTIVATIONS), dtype=_dtype(fields),
        tied=fields.flag("tie_word_embeddings", False), eos=eos, rotary=_rotary(fields),
        attention_bias=fields.flag("attention_bias", False), mlp_bias=fields.flag("mlp_bias", False),
    )  # fmt: skip


def _rotary(fields: _Fields) -> Rotary:
    """Newer files have ``rope_parameters``, older ones ``rope_theta`` and ``rope_scaling``."""
    given = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise fields.bad("rope_scaling", "must be an object")
    inner = _Fields(
        {"rope_theta": fields.raw.get("rope_theta", 10000.0)} | given, f"{fields.file}, rotary embedding"
    )
    kind = inner.raw.get("rope_type", inner.raw.get("type", "default"))
    theta = inner.number("rope_theta", 10000.0)
    if kind == "default":
        return Rotary(theta)
    if kind == "linear":
        return Rotary(theta, "linear", inner.number("factor", 1.0))
    if kind == "llama3":
        return Rotary(
            theta, "llama3", inner.number("factor", 1.0), inner.number("low_freq_factor", 1.0),
            inner.number("high_freq_factor", 4.0), inner.count("original_max_position_embeddings", 8192),
        )  # fmt: skip
    raise BadInput(
        "is not supported",
        field="rope_type",
        value=kind,
        remedy="serve a model with default, linear or llama3",
    )


def _gpt2(fields: _Fields, eos: tuple[int, ...]) -> ModelConfig:
    hidden, heads = fields.count("n_embd", 768), fields.count("n_head", 12)
    if hidden % heads:
        raise fields.bad("n_head", f"must divide n_embd {hidden}")
    fields.must_be("scale_attn_weights", True)
    fields.must_be("scale_attn_by_inverse_layer_idx", False)
    fields.must_be("add_cross_attention", False)
    return ModelConfig(
        form="gpt2", layers=fields.count("n_layer", 12), hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads,
        inner=fields.count("n_inner", 4 * hidden), vocabulary=fields.count("vocab_size", 50257),
        context=fields.count("n_positions", 1024), norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.word("activation_function", "gelu_new", ACTIVATIONS), dtype=_dtype(fields),
        tied=fields.flag("tie_word_embeddings", True), eos=eos or (50256,), attention_bias=True, mlp_bias=True,
    )  # fmt: skip
