"""Starts a gang of plain processes with the environment that torchrun would give them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from examples.warm import WarmRank


class Gang:
    """``ranks`` processes of one script; whatever still runs is killed on the way out. ``warm``: see :class:`WarmRank`."""

    def __init__(
        self,
        script: Path,
        arguments: list[str],
        ranks: int,
        place: Path,
        env: Callable[[int], dict[str, str]] = lambda _: {},
        *,
        warm: bool = False,
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.logs = [place / f"rank{rank}.log" for rank in range(ranks)]
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        self.processes: list[subprocess.Popen[bytes] | WarmRank] = []
        for rank, log in enumerate(self.logs):
            rank_env = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
                "CUDA_VISIBLE_DEVICES": "",
                **env(rank),
            }
            command = [sys.executable, str(script), *arguments]
            if warm:
                self.processes.append(WarmRank(command, rank_env, place, log))
                continue
            with log.open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        command, env=rank_env, cwd=place, stdout=output, stderr=subprocess.STDOUT
                    )
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def codes(self, timeout_s: float = 120) -> list[int]:
        """Exit codes, once all have ended."""
        return [process.wait(timeout_s) for process in self.processes]

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)

    def printed(self, rank: int) -> str:
        return self.logs[rank].read_text()
