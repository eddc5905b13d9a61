"""Records that a rank writes while it runs, one JSON object per line, each flushed; and how the launcher reads them as they come."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unidle.span.rank.member import dashed


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


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One line: of which device in which attempt."""

    attempt: int
    device: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", ""))


@dataclass(slots=True)
class RecordReader:
    """The files of one attempt, each read on from where it was."""

    directory: Path
    attempt: int
    devices: tuple[str, ...]
    _at: dict[str, int] = field(default_factory=dict)
    _rest: dict[str, bytes] = field(default_factory=dict)

    def poll(self) -> Iterator[RankRecord]:
        """What is new, whole lines only."""
        for device in self.devices:
            path = self.directory / f"out-{self.attempt}" / f"{dashed(device)}.jsonl"
            try:
                with path.open("rb") as stream:
                    stream.seek(self._at.get(device, 0))
                    read = stream.read()
            except FileNotFoundError:
                continue
            if not read:
                continue
            self._at[device] = self._at.get(device, 0) + len(read)
            *lines, self._rest[device] = (self._rest.get(device, b"") + read).split(b"\n")
            for line in lines:
                try:
                    body = json.loads(line)
                except ValueError:
                    continue  # a rank that was killed in the middle of a line
                if isinstance(body, dict):
                    yield RankRecord(self.attempt, device, body)
