"""Small models in the forms of Hugging Face, written by the test: random weights, a tokenizer trained on a few lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "Größe und Straße, naïve café, 東京 and Москва",
    "a training job waits for its gang; a bubble is a wait",
    "0123456789 ! ? . , : ; ( ) [ ] { } \" '",
]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
VOCABULARY = 384


def write_tokenizer(directory: Path, *, template: bool = True) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings: dict[str, Any] = {"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[1]}}
    if template:
        settings["chat_template"] = TEMPLATE
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


LLAMA: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 1, "bos_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "eos_token_id": 1, "bos_token_id": 0,
}  # fmt: skip


def peer(form: str, **changes: Any) -> Any:
    """The same model by ``transformers``, with weights large enough for clear choices."""
    import transformers

    torch.manual_seed(7)
    if form == "llama":
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**LLAMA | {"initializer_range": 0.2} | changes)
        )
    else:
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**GPT2 | {"initializer_range": 0.2} | changes)
        )
    model.generation_config.eos_token_id = 1
    return model.eval()


def write_model(
    directory: Path, form: str, *, template: bool = True, shards: str = "5GB", **changes: Any
) -> Any:
    """Write it as ``save_pretrained`` does; returns the model by ``transformers``."""
    directory.mkdir(parents=True, exist_ok=True)
    model = peer(form, **changes)
    model.save_pretrained(directory, max_shard_size=shards)
    write_tokenizer(directory, template=template)
    return model
