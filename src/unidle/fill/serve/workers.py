"""The dedicated workers of a front door: started, started again after their end, ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.errors import CannotRun
from unidle.fill.serve.door import Door
from unidle.fill.serve.links import WorkerLink
from unidle.fill.serve.wire import WorkerGreeting

_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Of each worker: the model's directory and what limits it."""

    model: Path
    dtype: str | None
    threads: int | None
    blocks: int
    block_tokens: int
    batch: int
    chunk_tokens: int

    def words(self, device: str, fd: int) -> list[str]:
        """The command of the worker of a device."""
        given = {
            "--fd": fd, "--model": self.model, "--device": device, "--dtype": self.dtype, "--threads": self.threads, "--blocks": self.blocks,
            "--block-tokens": self.block_tokens, "--batch": self.batch, "--chunk-tokens": self.chunk_tokens,
        }  # fmt: skip
        pairs = [(name, str(value)) for name, value in given.items() if value is not None]
        return [
            sys.executable,
            "-P",
            "-m",
            "unidle.fill.serve.worker",
            *(word for pair in pairs for word in pair),
        ]


class Workers:
    """One worker for each device. ``model``: the digest of the first greeting, which all others must have."""

    def __init__(self, door: Door, options: WorkerOptions, devices: list[str]) -> None:
        self._door = door
        self._options = options
        self._devices = devices
        self._tasks = list[asyncio.Task[None]]()
        self._links = set[WorkerLink]()
        self._model: str | None = None
        self.ready = asyncio.Event()
        self.failed: CannotRun | None = None

    def accepts(self, greeting: WorkerGreeting) -> bool:
        """It runs the same model as the others."""
        self._model = self._model or greeting.model
        if greeting.kind == "dedicated":
            self.ready.set()
        return greeting.model == self._model

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(device)) for device in self._devices]

    async def _keep(self, device: str) -> None:
        """Run the worker of a device, again and again."""
        pause_s = _PAUSE_S
        while True:
            code, greeted = await self._run(device)
            if not greeted and not self.ready.is_set():
                self.failed = CannotRun(
                    f"the worker ended with code {code} before it was ready",
                    field="--device",
                    value=device,
                    remedy="see its message above",
                )
                self.ready.set()
                return
            pause_s = _PAUSE_S if greeted else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._door.metrics.count("worker_restarts_total")
            await asyncio.sleep(pause_s)

    async def _run(self, device: str) -> tuple[int, bool]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        gone = asyncio.Event()
        link: WorkerLink | None = None
        process: asyncio.subprocess.Process | None = None
        try:
            process = await asyncio.create_subprocess_exec(
                *self._options.words(device, theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
            theirs.close()
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: WorkerLink(self._door, self.accepts, lambda _: gone.set()), sock=ours
            )
            self._links.add(link)
            await gone.wait()
            return await _ended(process), link.greeted
        finally:
            theirs.close()
            if link is not None:
                link.close()
                self._links.discard(link)
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def stop(self) -> None:
        """Close all connections, and wait until all workers have ended."""
        for link in list(self._links):
            link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _ended(process: asyncio.subprocess.Process) -> int:
    """The exit code; a process that does not end after its connection did is killed."""
    try:
        return await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        process.kill()
        return await process.wait()
