"""The memory of a model: known sizes, both forms of file, and a real training step."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nightly
from e2e.commands import unidle
from unidle.tune.fit.memory import largest_batch, memory_of
from unidle.tune.fit.model import DecoderModel, ShardedOver, Use

ROOT = Path(__file__).resolve().parents[2]
LLAMA3_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "rope_scaling": None,
}  # fmt: skip
MODEL = DecoderModel(32, 4096, 32, 8, 128, 14336, 128256)


def fit(tmp_path: Path, config: object, *words: str, name: str = "config.json") -> dict:
    (tmp_path / name).write_text(config if isinstance(config, str) else json.dumps(config))
    done = unidle("tune", "fit", str(tmp_path / name), "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_published_models_have_their_published_number_of_parameters(tmp_path: Path) -> None:
    assert fit(tmp_path, LLAMA3_8B)["parameters"] == 8_030_261_248
    assert fit(tmp_path, {"model_type": "gpt2"}, "--sequence", "1024")["parameters"] == 124_439_808


def test_a_model_file_is_read_as_the_configuration_is(tmp_path: Path) -> None:
    text = "layers: 32\nhidden: 4096\nheads: 32\nkv_heads: 8\nintermediate: 14336\nvocabulary: 128256\n"
    assert fit(tmp_path, text, name="model.yaml") == fit(tmp_path, LLAMA3_8B)


def test_bytes_are_by_part_and_devices_have_a_largest_batch(tmp_path: Path) -> None:
    found = fit(tmp_path, LLAMA3_8B, "--serve", "--precision", "int4")
    assert list(found["bytes"]) == ["weights", "gradients", "optimizer", "activations", "kv", "other"]
    assert found["bytes"]["kv"] == 2 * 32 * 8 * 128 * 2 * 2048
    assert found["bytes"]["gradients"] == found["bytes"]["optimizer"] == 0
    batches = {one["device"]: one["batch"] for one in found["fits"]}
    assert batches["T4 16 GB"] < batches["H100 80 GB"] < batches["H200 141 GB"]


def test_the_text_shows_the_arithmetic(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA3_8B))
    done = unidle("tune", "fit", str(tmp_path / "config.json"))
    assert "weights: (8,030,261,248 x 16 bits) / 1 = 16,060,522,496 B" in " ".join(done.stdout.split())
    assert "does not fit" in done.stdout


@pytest.mark.parametrize(
    ("config", "words", "match"),
    [
        ({"model_type": "t5"}, [], "model_type: is not supported (got 't5')"),
        ({**LLAMA3_8B, "hidden_size": "4096"}, [], "hidden_size: must be a number"),
        ({**LLAMA3_8B, "num_key_value_heads": 5}, [], "kv_heads: does not divide heads"),
        ({**LLAMA3_8B, "num_local_experts": 8}, [], "num_local_experts: has experts"),
        ("[]", [], "must be a mapping"),
        ("{", [], "config.json"),
        ({"layers": 3}, [], "hidden"),
        (LLAMA3_8B, ["--precision", "int4"], "--precision: is for inference"),
        (LLAMA3_8B, ["--tensor", "64"], "--tensor: is more than the model has"),
        ({"model_type": "gpt2"}, [], "--sequence: is longer than the positions"),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, config: object, words: list[str], match: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    done = unidle("tune", "fit", str(file), *words)
    assert done.returncode == 2
    assert match in " ".join(done.stderr.split())


def test_each_level_of_sharding_and_recomputation_needs_less() -> None:
    use = Use(4, 4096)
    sharded = [memory_of(MODEL, use, ShardedOver(data=8, zero=zero)) for zero in range(4)]
    sums = [one.weights + one.gradients + one.optimizer for one in sharded]
    assert sums == sorted(set(sums), reverse=True)
    assert memory_of(MODEL, replace(use, recompute=True)).peak < memory_of(MODEL, use).peak
    for cut in (ShardedOver(tensor=2), ShardedOver(pipeline=2)):
        assert memory_of(MODEL, use, cut).weights < memory_of(MODEL, use).weights


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    cut, size = ShardedOver(data=8, zero=3), 80 << 30
    most = largest_batch(MODEL, Use(), cut, size)
    room = (size - (1 << 30)) * 0.95
    assert (
        memory_of(MODEL, Use(batch=most), cut).peak <= room < memory_of(MODEL, Use(batch=most + 1), cut).peak
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_the_predicted_peak_is_within_5_percent_of_what_the_allocator_of_pytorch_counts() -> None:
    every = nightly.rounds(1, else_=4)
    done = subprocess.run(
        [sys.executable, "bench/tune_fit.py", "--json", "--every", str(every)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == len(range(0, 14, every)), done.stderr
    assert all(abs(one["ours"]) <= 5 for one in rows), rows
