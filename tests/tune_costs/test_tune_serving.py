"""Programs that serve a model: where requests begin, their times to the first and to further tokens, and what findings cost of each."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from e2e.commands import unidle
from unidle.tune.analysis.source import SourceFacts
from unidle.tune.trial.serving import RequestTimes, is_cold, mark_requests, request_functions, served_times

SERVER = '''"""A server of a small model, as a script that answers some prompts."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 64)
        self.inner = nn.Linear(64, 1024)
        self.outer = nn.Linear(1024, 256)
        self.first = True

    def forward(self, ids):
        if self.first:
            self.first = False
            sum(range(6_000_000))  # what a compiler does
        x = self.table(ids).cumsum(1)
        return self.outer(torch.relu(self.inner(x)))


def encode(text):
    return torch.tensor([list(text.encode())])


@torch.no_grad()
def generate(model, ids, count):
    for _ in range(count):
        logits = model(ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    return ids


def answer(model, prompt):
    """One request."""
    if not prompt:
        return []
    ids = encode(prompt)
    sum(range(30_000))  # what a slow tokenizer does
    return generate(model, ids, 12)[0].tolist()


model = Words().eval()
for number in range(8):
    print(len(answer(model, "a prompt " * 20)))
'''
HANDLERS = """import torch
from fastapi import FastAPI
app = FastAPI()
model = torch.jit.load("m.pt")
@app.post("/a")
async def first(q: str):
    '''Answers.'''
    with torch.inference_mode():
        return run(q)
def run(q):
    return model.generate(q)
@app.get("/b")
def second(q: str):
    for one in q.split():
        model.generate(one)
"""


def facts(text: str) -> SourceFacts:
    return SourceFacts("serve.py", text, ast.parse(text))


def test_a_request_begins_where_what_generates_is_called_again_and_again() -> None:
    assert [one.name for one in request_functions(facts(SERVER))] == ["answer"]
    assert {one.name for one in request_functions(facts(HANDLERS))} == {"first", "second"}
    assert request_functions(facts("import torch\nmodel = torch.jit.load('m')\nmodel.generate(1)\n")) == []


@pytest.mark.parametrize(
    ("body", "marked"),
    [
        ("return generate()", "M; return generate()"),
        ("'''Text.'''\n    x = 'ä'; return generate()", "'''Text.'''\n    M; x = 'ä'; return generate()"),
        ("for x in y: pass\n    return generate()", "for x in (M, y)[1]: pass\n    return generate()"),
        ("with a, b:\n        return generate()", "with (M, a)[1], b:\n        return generate()"),
        ("if not (a or\n        b):\n        return generate()", "if (M, not (a or\n        b))[1]:\n        return generate()"),
        ("try:\n        return generate()\n    finally:\n        pass", "try:\n        M; return generate()\n    finally:\n        pass"),
        ("def inner(): pass\n    return generate()", "def inner(): pass\n    M; return generate()"),
        ("while a:\n        break\n    return generate()", "while a:\n        break\n    return generate()"),
    ],
)  # fmt: skip
def test_a_mark_keeps_the_numbers_of_lines_and_what_is_computed(tmp_path: Path, body: str, marked: str) -> None:  # fmt: skip
    head = "import torch\nmodel = torch.jit.load('m')\ndef generate():\n    return model.generate(1)\n"
    text = f"{head}def request(a, b, y):\n    {body}\nfor _ in range(9):\n    request(1, 2, 3)\n"
    (tmp_path / "serve.py").write_text(text)
    count = mark_requests(tmp_path)
    after = (tmp_path / "serve.py").read_text()
    assert after == text.replace(body, marked.replace("M", '__import__("tune_serving").begin()'))
    assert count == (body != marked)
    ast.parse(after)


def test_times_are_medians_and_a_cold_start_is_seen_from_four_requests_on() -> None:
    warm = [RequestTimes("serve.py", 3, 0.010, 0.030, 4)] * 9
    times = served_times([RequestTimes("serve.py", 3, 0.5, 0.0, 1), *warm])
    assert times is not None
    assert (times.requests, times.ttft_ms, times.first_ttft_ms, times.ttft_p95_ms) == (10, pytest.approx(10), 500, 500)  # fmt: skip
    assert times.tpot_ms == pytest.approx(10)
    assert is_cold(times)
    for several in (warm, [RequestTimes("serve.py", 3, 0.5, 0.0, 1), *warm[:2]]):
        assert (found := served_times(several)) is not None
        assert not is_cold(found)
    assert served_times([]) is None


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_a_program_that_serves_has_times_of_requests_and_findings_their_shares_of_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "serve.py").write_text(SERVER)
    done = unidle("tune", "profile", "--json", "--", sys.executable, "serve.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    times = found["serving"]
    assert times["requests"] == 8
    assert 0 < times["tpot_ms"] <= times["tpot_p95_ms"]
    assert 0 < times["ttft_ms"] <= times["ttft_p95_ms"] == times["first_ttft_ms"]
    assert found["parts"]["prefill"] > 0
    assert found["parts"]["decode"] > 0
    by_code = {one["code"]: one for one in found["findings"]}
    cache, cold = by_code["UDL705"], by_code["UDL713"]
    assert cache["line"] == 32
    assert cache["tpot_pct"] > 50
    assert cold["message"].startswith("the first request waits ")
    assert cold["ttft_pct"] > 30
    assert (tmp_path / "serve.py").read_text() == SERVER
    assert "begin()" not in done.stdout
