"""Records that a rank writes while it runs: one JSON object per line, each flushed."""

from __future__ import annotations

import json
import os
import threading
from typing import Any


class Records:
    """The file of one device. Any thread may write."""

    def __init__(self, directory: str, device: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self.path = os.path.join(directory, f"{device.replace('/', '-')}.jsonl")
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._lock = threading.Lock()

    def write(self, kind: str, **fields: Any) -> None:
        text = json.dumps({"kind": kind, **fields})
        with self._lock:
            if not self._file.closed:
                self._file.write(text + "\n")
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()
