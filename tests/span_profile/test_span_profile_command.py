"""``unidle span profile`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
from unidle.errors import UnidleError
from unidle.span.cli.profile import profile

MODELS = Path(__file__).with_name("models.py")
HEAD = """# two sites and a model of our own
train:
  model: {build: models.py:build, arguments: {blocks: 3}}  # with batch and loss beside it
  data: models.py:batch
batch: 16
sites:  # both of them
  - {name: a, gpus: 2, stages: 1}
  - {name: b, gpus: 2, stages: 1}
links:
  - {from: a, to: b, latency_ms: 1, capacity_gbps: 1}
stages: 2
microbatches: 4
# the end
"""


def unidle(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unidle", *map(str, words)], capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_span_file_is_measured_and_keeps_its_comments_and_is_simulated_and_planned(tmp_path: Path) -> None:
    file = tmp_path / "span.yaml"
    file.write_text(HEAD)
    (tmp_path / "models.py").write_text(MODELS.read_text())
    done = unidle(
        "span", "profile", file, "--microbatch", "2", "--repeats", "4", "--threads", "1", "--beside", "2", "--json",
        "--write", file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "this is not an answer" in done.stderr  # what the model prints
    told = json.loads(done.stdout)
    names = ["before blocks.0", "blocks.0", "blocks.1", "blocks.2", "after blocks.2"]
    assert [layer["name"] for layer in told["layers"]] == names
    assert (told["microbatch"], told["beside"], told["threads"], told["how"]) == (2, 2, 1, "measured")
    block = told["layers"][1]
    tokens, width = 2 * 8, 32
    assert block["input_bytes"] == tokens * width * 4
    # beside its input: mean and deviation of the norm, its output, and what enters and leaves GELU
    assert block["kept_bytes"] == tokens * (2 + width + 2 * 4 * width) * 4
    for name in ("forward", "backward", "weight"):
        low, high = block["interval_ns"][name]
        assert 0 < low <= block[f"{name}_ns"] <= high
    assert told["sum_ns"] > 0 < told["step_ns"]["value"]

    text = file.read_text()
    assert text.startswith(HEAD.rstrip())
    assert [path.name for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == [
        "models.py",
        "span.yaml",
    ]
    simulated = unidle("span", "simulate", file, "--schedule", "1f1b", "--json")
    assert simulated.returncode == 0, simulated.stderr
    assert json.loads(simulated.stdout)["1f1b"]["checked"]
    planned = unidle("span", "plan", file, "--json")
    assert planned.returncode == 0, planned.stderr
    assert sum(json.loads(planned.stdout)["layers"]) == 5


@needs.gpu
def test_layers_are_measured_on_a_gpu() -> None:
    done = unidle(
        "span",
        "profile",
        f"{MODELS}:build",
        "--device",
        "cuda:0",
        "--repeats",
        "5",
        "--dtype",
        "bfloat16",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not told["device"].startswith("cpu")
    assert all(layer["forward_ns"] > 0 and layer["weight_ns"] > 0 for layer in told["layers"])


def test_a_process_that_measures_ends_with_who_asked(wait_until: Any) -> None:
    asked = {"build": f"{MODELS}:build", "microbatch": 1, "repeats": 1_000_000}
    command = [sys.executable, "-m", "unidle.span.measure"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{json.dumps(asked)}\n".encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"ready": True}
        process.stdin.write(b"go\n")
        process.stdin.close()
        wait_until(lambda: process.poll() is not None, 60, "its end")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("raises", 2, "build: raised ValueError: no weights here (models.py:"),
        ("huge", 3, "memory: out of memory while building the model"),
        ("killed", 3, "was ended by signal 9 before it could answer: perhaps it ran out of memory"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_line(
    function: str, code: int, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "span.yaml"
    file.write_text("# mine\n")
    done = unidle("span", "profile", f"{MODELS}:{function}", "--write", tmp_path / "new.yaml")
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["span.yaml"]


@pytest.mark.parametrize(
    ("target", "more", "code", "says"),
    [
        ("4242", {}, 3, "layers of a process that runs cannot be distinguished from outside (process 4242)"),
        ("my-job", {}, 3, "with --parallel"),
        ("nowhere.py:build", {}, 2, "TARGET: there is no such file"),
        (f"{MODELS}:two words", {}, 2, "is not FILE.py:FUNCTION"),
        ("nowhere.yaml", {}, 2, "there is no such file"),
        (f"{MODELS}:build", {"argument": ["blocks"]}, 2, "is not NAME=VALUE"),
        (f"{MODELS}:build", {"dtype": "int8"}, 2, "--dtype: is not a choice"),
        (f"{MODELS}:build", {"write": "/nowhere/span.yaml"}, 2, "--write: there is no such folder"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_built(target: str, more: Any, code: int, says: str) -> None:
    with pytest.raises(UnidleError) as refused:
        profile(target, **more)
    assert refused.value.exit_code == code
    assert says in refused.value.line()
    assert refused.value.remedy
