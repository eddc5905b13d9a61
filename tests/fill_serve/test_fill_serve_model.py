"""Models of this package compared with those of ``transformers``: logits, greedy tokens, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fill_serve.models import write_model
from unidle.errors import BadInput
from unidle.fill.serve.kv.cache import DecodeAttention, PagedCache
from unidle.fill.serve.model.causal import CausalModel
from unidle.fill.serve.model.load import load_model
from unidle.fill.serve.prefill import PromptPrefill

FORMS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    ("llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }}),
    ("gpt2", {}),
    ("gpt2", {"activation_function": "gelu", "n_inner": 96}),
]  # fmt: skip


def cache_of(model: CausalModel, blocks: int = 40, size: int = 8) -> PagedCache:
    return PagedCache(model.config, blocks, size, torch.device("cpu"), torch.float32)


def prefilled(
    model: CausalModel, cache: PagedCache, blocks: list[int], tokens: list[int], chunk: int
) -> torch.Tensor:
    run = PromptPrefill(model, cache, blocks, tokens, chunk)
    while not run.done:
        run.run()
    assert run.logits is not None
    return run.logits


def greedy(model: CausalModel, tokens: list[int], count: int, chunk: int) -> list[int]:
    cache = cache_of(model)
    blocks = list(range(39, 39 - (len(tokens) + count) // 8 - 1, -1))
    answer = [int(prefilled(model, cache, blocks, tokens, chunk).argmax())]
    with torch.inference_mode():
        while len(answer) < count:
            place = len(tokens) + len(answer) - 1
            state = model.begin(torch.tensor(answer[-1:]), torch.tensor([place]))
            attend = DecodeAttention(cache, [blocks], [place + 1])
            for layer in range(model.config.layers):
                model.layer(layer, state, attend)
            answer.append(int(model.logits(state.x)[0].argmax()))
    return answer


@pytest.mark.parametrize(("form", "changes"), FORMS)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    tmp_path: Path, form: str, changes: dict[str, Any]
) -> None:
    other = write_model(tmp_path, form, **changes)
    model = load_model(tmp_path)
    tokens = torch.randint(5, 384, (75,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.no_grad():
        expected = other(torch.tensor([tokens])).logits[0, -1].float()
        generated = other.generate(
            torch.tensor([tokens]), attention_mask=torch.ones(1, 75, dtype=torch.long), max_new_tokens=30, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )[0, 75:].tolist()  # fmt: skip
    for chunk in (16, 75, 512):
        found = prefilled(model, cache_of(model), list(range(10)), tokens, chunk)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
    assert greedy(model, tokens, 30, 16) == generated


@pytest.mark.parametrize("form", ["llama", "gpt2"])
def test_bits_depend_on_the_chunk_plan_and_not_on_blocks_pauses_or_other_prompts(
    tmp_path: Path, form: str
) -> None:
    write_model(tmp_path, form)
    model = load_model(tmp_path)
    tokens = torch.randint(5, 384, (61,), generator=torch.Generator().manual_seed(5)).tolist()
    alone = prefilled(model, cache_of(model), list(range(8)), tokens, 16)
    cache = cache_of(model)
    cache.kv.fill_(3.0)  # what others left
    first = PromptPrefill(model, cache, [30, 7, 22, 1, 16, 3, 9, 12], tokens, 16)
    second = PromptPrefill(model, cache, [31, 8, 23, 2], tokens[:30], 8)
    while not first.done:
        first.run()
        if not second.done:
            second.run()
        torch.is_inference_mode_enabled() and pytest.fail("a piece left its mode behind")
    assert first.logits is not None and torch.equal(first.logits, alone)


def test_shards_and_files_without_prefix_are_read(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_model(tmp_path / "whole", "gpt2")
    write_model(tmp_path / "shards", "gpt2", shards="100KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    write_model(tmp_path / "bare", "gpt2")
    file = tmp_path / "bare" / "model.safetensors"
    save_file({name.removeprefix("transformer."): value for name, value in load_file(file).items()}, file)
    tokens = list(range(5, 40))
    found = []
    for name in ("whole", "shards", "bare"):
        model = load_model(tmp_path / name)
        found.append(prefilled(model, cache_of(model), list(range(8)), tokens, 64))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "mamba"}, "model_type: is not supported"),
        ({"num_attention_heads": 5}, "num_attention_heads: must divide hidden_size 64"),
        ({"num_attention_heads": 0}, "num_attention_heads: must be a whole number above 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: must divide"),
        ({"hidden_act": "swish9"}, "hidden_act: is not supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type: is not supported"),
        ({"vocab_size": 400}, "embed_tokens.weight: has shape [384, 64], and config.json means [400, 64]"),
        ({"num_hidden_layers": 4}, "has no such tensor"),
        ({"eos_token_id": ["x"]}, "eos_token_id: must be a token"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_one_clear_error(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    write_model(tmp_path, "llama")
    (tmp_path / "generation_config.json").unlink()
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text()) | change
    if "num_attention_heads" in change:
        del raw["head_dim"]
    file.write_text(json.dumps(raw))
    with pytest.raises(BadInput) as caught:
        load_model(tmp_path)
    assert text in str(caught.value)


def test_a_directory_without_a_model_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        load_model(tmp_path)
    write_model(tmp_path, "gpt2")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadInput, match="cannot be read"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"has no model\.safetensors"):
        load_model(tmp_path)
    write_model(tmp_path, "gpt2")
    with pytest.raises(BadInput, match="is not a device"):
        load_model(tmp_path, "cuda:99")
