"""The fillers of a server in the waits of a job: ``unidle fill run`` in a process of its own, which ends with the server.

It follows the job through its attempts. Whatever happens to it, the server keeps its dedicated devices.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from unidle.fill.serve.workers import WorkerOptions

FILLER: Final = "unidle.fill.serve.bubbles:BubblePrefill"
_END_S: Final = 15.0
_LEAST_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class JobFilling:
    """``job``: its id. ``store``: as given, None for the default. ``piece_ms``: the longest piece of prefill in a wait. ``trial``: as in the
    filler file.
    """

    job: str
    store: str | None
    piece_ms: float
    trial: bool

    def filler_file(self, options: WorkerOptions, door: Path) -> dict[str, Any]:
        """The filler file. Its chunks are those of the workers, so both routes give the same bits."""
        arguments: dict[str, Any] = {
            "model": str(options.model.absolute()),
            "door": str(door),
            "chunk_tokens": options.chunk_tokens,
        }
        if options.dtype is not None:
            arguments["dtype"] = options.dtype
        weights = sum(each.stat().st_size for each in options.model.glob("*.safetensors"))
        memory = _LEAST_BYTES + 3 * weights  # as they are read, and with another dtype
        return {
            "filler": FILLER, "arguments": arguments, "memory": memory, "piece_ms": self.piece_ms, "trial": self.trial,
        }  # fmt: skip

    def words(self) -> list[str]:
        """The command, which reads the filler file from its standard input."""
        store = [] if self.store is None else ["--store", self.store]
        return [sys.executable, "-P", "-m", "unidle.fill.cli.job_fillers", "-", "--job", self.job, *store]


@dataclass(slots=True)
class JobFillers:
    """``say``: for the user."""

    say: Callable[[str], None]
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self, filling: JobFilling, options: WorkerOptions, door: Path) -> None:
        """Run it once."""
        file = json.dumps(filling.filler_file(options, door)).encode()
        self._task = asyncio.create_task(self._run(filling, file))

    async def _run(self, filling: JobFilling, file: bytes) -> None:
        process = await asyncio.create_subprocess_exec(*filling.words(), stdin=asyncio.subprocess.PIPE)
        try:
            await process.communicate(file)
            how = "" if process.returncode == 0 else f" with code {process.returncode}"
            self.say(
                f"fillers of {filling.job} ended{how}: all prompts take the route `dedicated` from now on"
            )
        finally:
            if process.returncode is None:
                await _ended(process)

    async def stop(self) -> None:
        """End it, with its fillers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """It removes its control groups; the reaper does where it is killed."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
