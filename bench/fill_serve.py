"""The front door of `unidle fill serve`: 1,000 concurrent streams without an error, and what its own process costs for each token.

The model is a small Llama with random weights, in a worker process as always. The front door is a process without a model, so its CPU time
(user and system, from /proc) between begin and end of the load is all that it costs: HTTP, JSON, tokenizer, text, sockets. It is divided by the
tokens that were generated. The load comes from a third process with a lean client, whose CPU time is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _table import Row, main

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fill_serve"))
STREAMS, TOKENS, LIMIT_US = 1000, 64, 60.0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run(model: Path, log: Path, requests: int) -> tuple[float, dict[str, Any]]:
    """CPU seconds of the front door, and what `unidle fill bench` printed."""
    words = [sys.executable, "-m", "unidle", "fill"]
    options = {
        "--port": 0,
        "--threads": 1,
        "--batch": STREAMS,
        "--kv-tokens": STREAMS * 96,
        "--most-waiting": STREAMS,
    }
    load = {"--model": "tiny", "--requests": requests, "--streams": STREAMS, "--max-tokens": TOKENS}
    with open(log, "wb") as out:
        server = subprocess.Popen(
            [*words, "serve", "--model", str(model), *_flat(options)], stdout=out, stderr=out
        )
    try:
        while not (found := re.search(r"http://\S+/v1", log.read_text())):
            if server.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        before = cpu_s(server.pid)
        done = subprocess.run(
            [*words, "bench", found[0], *_flat(load), "--json"], capture_output=True, text=True, check=False
        )
        return cpu_s(server.pid) - before, json.loads(done.stdout)
    finally:
        server.terminate()
        server.wait()


def _flat(options: Mapping[str, object]) -> list[str]:
    return [str(word) for pair in options.items() for word in pair]


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    from models import write_model  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(prefix="unidle-bench-serve-") as folder:
        model = Path(folder) / "tiny"
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
        write_model(model, "llama", **sizes, num_attention_heads=2, num_key_value_heads=1)
        spent, result = _run(model, Path(folder) / "log", arguments.requests)
    how = f"measured here, 1 run: {result['answered']} answers, {result['tokens']} tokens in {result['seconds']:.1f} s"
    failed = result["failed"]
    yield Row("errors of 1,000 concurrent streams", "errors", failed, goal="0", holds=failed == 0, how=how)
    each = spent * 1e6 / max(result["tokens"], 1)
    yield Row(
        "CPU time of the front door for each token", "us", each, goal=f"<= {LIMIT_US:g} us", holds=each <= LIMIT_US, how=how
    )  # fmt: skip


if __name__ == "__main__":
    main("fill_serve", rows, lambda parser: parser.add_argument("--requests", type=int, default=1000))
