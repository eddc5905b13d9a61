"""What the ranks of a run wrote, read as it comes: one file of JSON lines for each device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unidle.span.rank.member import dashed


@dataclass(frozen=True, slots=True)
class Record:
    """One line: of which device in which attempt."""

    attempt: int
    device: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", ""))


@dataclass(slots=True)
class Reader:
    """The files of one attempt, each read on from where it was."""

    directory: Path
    attempt: int
    devices: tuple[str, ...]
    _at: dict[str, int] = field(default_factory=dict)
    _rest: dict[str, bytes] = field(default_factory=dict)

    def poll(self) -> Iterator[Record]:
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
                    yield Record(self.attempt, device, body)
