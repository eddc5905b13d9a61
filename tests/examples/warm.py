"""Ranks forked from a Python that has imported PyTorch: a gang starts in tenths of a second.

They are processes of their own all the same. Its import takes seconds of processor time in each rank, and proves nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from unidle.engine.local.ranks.supervisor.script_runner import become

# Read when PyTorch is imported, so they cannot be set later.
_AT_IMPORT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# The second line is what optimizers import when the first one is made.
_IMPORTED = (
    "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "torch.nn.parallel", "torch.optim",
    "torch._dynamo.polyfills.loader", "torch._dynamo.comptime", "torch.onnx.ops",
)  # fmt: skip
_CONTEXT = multiprocessing.get_context("forkserver")


class WarmRank:
    """One rank, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, argv: list[str], env: dict[str, str], place: Path, log: Path) -> None:
        _start_server()
        log.write_bytes(b"")
        self._process: ForkServerProcess = _CONTEXT.Process(
            target=_run, args=(argv, env, str(place), str(log))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        code = self._process.exitcode
        assert code is not None, f"rank {self.pid} still runs after {timeout_s} s"
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _start_server() -> None:
    """Once for all tests of this process; it ends with it."""
    _CONTEXT.set_forkserver_preload(list(_IMPORTED))
    before = {name: os.environ.get(name) for name in _AT_IMPORT}
    os.environ.update(_AT_IMPORT)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _run(argv: list[str], env: dict[str, str], place: str, log: str) -> None:
    os.chdir(place)
    output = os.open(log, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(output, number)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    become(argv, env)
