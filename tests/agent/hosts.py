"""Hosts under test: an agent as a process, with a state directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from agent.hubs import TestHub
from e2e.commands import UNIDLE
from unidle.agent.boxes import LOCK
from unidle.engine.local.ranks.rundir import is_held
from waiting import wait_until


class DialledHub(Protocol):
    """The part of a hub that an agent needs to be told of."""

    @property
    def address(self) -> str: ...

    @property
    def join_file(self) -> Path: ...


class Host:
    """A host that may join: its state directory and the agent that runs on it."""

    def __init__(self, place: Path, name: str = "n1") -> None:
        self.place, self.name = place, name
        self.state = place / f"state-{name}"
        self.more: dict[str, str] = {}

    def words(self, hub: DialledHub | None = None, **changed: object) -> list[str]:
        given: dict[str, object] = {"node": self.name, "state": self.state, "cpu-devices": 2}
        if hub is not None:
            given |= {"join": hub.address, "token-file": hub.join_file}
        given |= {key.replace("_", "-"): value for key, value in changed.items()}
        words = ["agent"]
        for key, value in given.items():
            words += [] if value is False else [f"--{key}"] if value is True else [f"--{key}", str(value)]
        return words

    @contextmanager
    def agent(self, hub: DialledHub, *prefix: str, **changed: object) -> Iterator[subprocess.Popen[str]]:
        command = [*prefix, *UNIDLE, *self.words(hub, **changed)]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **self.more}, cwd=self.place
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def fails(self, hub: TestHub | None, **changed: object) -> tuple[int, str]:
        """Exit code and error of an agent that cannot join."""
        done = subprocess.run(
            [*UNIDLE, *self.words(hub, **changed)], capture_output=True, text=True, timeout=100, check=False,
            env={**os.environ, **self.more}, cwd=self.place,
        )  # fmt: skip
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1, done.stderr
        return done.returncode, lines[0]

    @property
    def boxes(self) -> list[Path]:
        return sorted((self.state / "boxes").glob("*"))

    def end_boxes(self) -> None:
        for place in self.boxes:
            with open(place / LOCK) as lock:
                text = lock.read().strip()
            if is_held(place / LOCK):
                os.kill(int(text), signal.SIGTERM)
                wait_until(lambda place=place: not is_held(place / LOCK), 60)


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, once it has ended by itself."""
    return process.communicate(timeout=60)[1]
