"""Running the command line as users do, for the tests of whole processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from warm_commands import WARM, can_run, can_start

UNIDLE = [sys.executable, "-m", "unidle"]


def unidle(*words: object, timeout_s: float = 120, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end and return what came of it."""
    if can_run(more):
        return WARM.run(list(map(str, words)), timeout_s=timeout_s, **more)
    command = [*UNIDLE, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **more)


def ask(*words: object, timeout_s: float = 120) -> Any:
    """The JSON that a command prints; the command must succeed."""
    done = unidle(*words, "--json", timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start(*words: object, **more: Any) -> subprocess.Popen[bytes]:
    """Start a command without waiting for it."""
    more.setdefault("stdout", subprocess.DEVNULL)
    more.setdefault("stderr", subprocess.DEVNULL)
    if can_start(more):
        return WARM.start(list(map(str, words)), **more)
    return subprocess.Popen([*UNIDLE, *map(str, words)], **more)


def rows(store: Path) -> list[dict[str, Any]]:
    """The ledger's rows."""
    done = unidle("ledger", "--store", store, "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
