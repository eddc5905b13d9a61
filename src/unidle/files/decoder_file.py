"""A model as `unidle tune fit` reads it: its own YAML, or the config.json of Hugging Face in the form of Llama or GPT-2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from unidle.files.check import convert
from unidle.files.document import BadFile, Bounds, Document
from unidle.files.load import load_document, source_name

_LLAMA: Final = ("llama", "mistral", "qwen2", "qwen3")
_MOST: Final = 1 << 24


def _size(text: str, example: int) -> Meta:
    return Meta(ge=1, le=_MOST, description=text, examples=[example])


class DecoderFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shape of a decoder."""

    layers: Annotated[int, _size("Number of layers.", 32)]
    hidden: Annotated[int, _size("Width of the residual stream.", 4096)]
    heads: Annotated[int, _size("Heads of attention.", 32)]
    vocabulary: Annotated[int, _size("Number of tokens that exist.", 32000)]
    kv_heads: Annotated[
        Annotated[int, Meta(ge=1, le=_MOST)] | None,
        Meta(description="Heads of keys and values; default: heads.", examples=[8]),
    ] = None
    head_dim: Annotated[
        Annotated[int, Meta(ge=1, le=_MOST)] | None,
        Meta(description="Width of a head; default: hidden / heads.", examples=[128]),
    ] = None
    intermediate: Annotated[
        Annotated[int, Meta(ge=1, le=_MOST)] | None,
        Meta(description="Inner width of the MLP; default: 4 x hidden.", examples=[14336]),
    ] = None
    positions: Annotated[
        int, Meta(ge=0, le=_MOST, description="Learned positions; 0 if they are rotary.", examples=[1024])
    ] = 0
    form: Annotated[
        Literal["llama", "gpt2"],
        Meta(description="Norms and MLP: RMSNorm and a gated MLP, or LayerNorm and GELU."),
    ] = "llama"
    bias: Annotated[
        bool | None,
        Meta(description="Whether linear layers have a bias; default: as in GPT-2, not in Llama."),
    ] = None
    tied: Annotated[bool, Meta(description="Whether input and output share their embedding.")] = False


def load_decoder(path: str | os.PathLike[str]) -> DecoderFile:
    """Read a model. Errors: :class:`unidle.errors.BadInput` with file, field, value and remedy."""
    document = load_document(path, what="model", bounds=Bounds())
    data = document.data
    if not isinstance(data, Mapping):
        raise document.error(
            (), "a model file must be a mapping of fields", remedy="`unidle schema model` has an example"
        )
    if "model_type" in data:
        return _of_config(source_name(path), data)
    found = convert(document, DecoderFile, what="model")
    _check(found, source_name(path), document)
    return found


def _of_config(source: str, config: Mapping[str, Any]) -> DecoderFile:
    kind = config["model_type"]

    def number(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise BadFile(
                source, f"must be a number from 1 to {_MOST}", field=name, value=value,
                remedy="give the config.json of the model",
            )  # fmt: skip
        return value

    if kind == "gpt2":
        hidden = number("n_embd", 768)
        found = DecoderFile(
            layers=number("n_layer", 12), hidden=hidden, heads=number("n_head", 12), vocabulary=number("vocab_size", 50257),
            intermediate=number("n_inner", 4 * hidden), positions=number("n_positions", 1024), form="gpt2", bias=True,
            tied=bool(config.get("tie_word_embeddings", True)),
        )  # fmt: skip
    elif kind in _LLAMA:
        if config.get("num_local_experts"):
            raise BadFile(
                source, "has experts, which are not supported", field="num_local_experts", value=config["num_local_experts"]
            )  # fmt: skip
        heads = number("num_attention_heads")
        found = DecoderFile(
            layers=number("num_hidden_layers"), hidden=number("hidden_size"), heads=heads, vocabulary=number("vocab_size"),
            kv_heads=number("num_key_value_heads", heads), intermediate=number("intermediate_size"),
            head_dim=number("head_dim", max(1, number("hidden_size") // heads)), tied=bool(config.get("tie_word_embeddings", False)),
        )  # fmt: skip
    else:
        raise BadFile(
            source, "is not supported", field="model_type", value=kind,
            remedy=f"use one of gpt2, {', '.join(_LLAMA)}, or a YAML file (`unidle schema model`)",
        )  # fmt: skip
    _check(found, source)
    return found


def _check(found: DecoderFile, source: str, document: Document | None = None) -> None:
    for field, wrong in (
        ("hidden", found.head_dim is None and found.hidden % found.heads != 0),
        ("kv_heads", found.kv_heads is not None and found.heads % found.kv_heads != 0),
    ):
        if wrong:
            problem, value = (
                "does not divide evenly by heads" if field == "hidden" else "does not divide heads",
                getattr(found, field),
            )
            if document is not None:
                raise document.error((field,), problem, value=value)
            raise BadFile(source, problem, field=field, value=value)
