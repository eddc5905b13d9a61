"""A real server of a small model, and raw requests to it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waiting import wait_until


@dataclass
class Door:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: bytes | dict[str, Any]) -> tuple[int, Any]:
        """Status and decoded body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def metric(self, name: str, labels: str = "") -> float:
        """A value of ``/metrics``, summed over the lines that have ``labels``."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if re.match(rf"unidle_fill_{name}[ {{]", line) and labels in line]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def at_rest(self) -> bool:
        """Nothing runs and no block is held."""
        return self.metric("running") == 0 and self.metric("kv_blocks_used") == 0


@contextlib.contextmanager
def door(model: Path, log: Path, *options: str) -> Iterator[Door]:
    words = [
        sys.executable,
        "-m",
        "unidle",
        "fill",
        "serve",
        "--model",
        str(model),
        "--port",
        "0",
        "--threads",
        "1",
        *options,
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:

        def port() -> int:
            text = log.read_text()
            assert process.poll() is None, text
            found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", text)
            return int(found[1]) if found else 0

        yield Door(process, wait_until(port, 120, "the server to be ready"), log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
