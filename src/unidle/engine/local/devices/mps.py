"""MPS on this machine: one control daemon for each GPU that is shared by it.

A daemon is bound to its GPU by CUDA_VISIBLE_DEVICES and found by its pipe directory
(https://docs.nvidia.com/deploy/mps/, "nvidia-cuda-mps-control" and "Environment Variables"). It outlives this
process, as ranks do; the next process finds it by the same directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Final, Protocol

from unidle.errors import CannotRun
from unidle.private import NotPrivate, check_directory, make_directory

CONTROL: Final = "nvidia-cuda-mps-control"
ANSWER_S: Final = 10.0


class MpsHands(Protocol):
    """Starts and ends what serves the MPS clients of a GPU."""

    def why_not(self) -> str | None:
        """Why this machine has no MPS; None when it has."""

    def ensure(self, uuid: str) -> tuple[str, str]:
        """Pipe and log directory of the GPU's daemon, which runs on return. Errors: :class:`CannotRun`."""

    def quit(self, uuid: str) -> None:
        """End the GPU's daemon; nothing happens when there is none."""


class MpsControl:
    """MPS through NVIDIA's control program.

    ``owner`` distinguishes the daemons of several users of this machine. ``parent`` is where the directories of
    their pipes are made (a short path, because a socket's path has at most 107 bytes).
    """

    def __init__(
        self, owner: str, parent: str | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._owner = owner
        self._parent = parent or tempfile.gettempdir()
        self._environ = dict(os.environ if environ is None else environ)

    def why_not(self) -> str | None:
        if shutil.which(CONTROL, path=self._environ.get("PATH")) is None:
            return f"{CONTROL} is not installed"
        return None

    def ensure(self, uuid: str) -> tuple[str, str]:
        pipes, logs = self.directories(uuid)
        if not self.runs(uuid):
            self._make(os.path.dirname(pipes), pipes, logs)
            done = self._run(["-d"], "", uuid)
            if done.returncode != 0 or not self.runs(uuid):
                said = done.stdout.strip()[-300:]
                raise CannotRun(
                    f"the MPS control daemon of {uuid} does not start: {said or 'no output'}",
                    field="share.mode", value="mps",
                    remedy=f"see the logs in {logs}; the GPU must not be in exclusive mode, nor in use by others",
                )  # fmt: skip
        return pipes, logs

    @staticmethod
    def _make(*directories: str) -> None:
        try:
            for directory in directories:
                make_directory(directory)
        except NotPrivate as error:
            raise CannotRun(
                f"MPS cannot use {error.path}: it {error.problem}", field="share.mode", value="mps",
                remedy=f"remove {error.path}",
            ) from error  # fmt: skip

    def quit(self, uuid: str) -> None:
        if self.runs(uuid):
            self._run([], "quit\n", uuid)
        shutil.rmtree(os.path.dirname(self.directories(uuid)[0]), ignore_errors=True)

    def runs(self, uuid: str) -> bool:
        """Whether the GPU's daemon answers."""
        pipes = self.directories(uuid)[0]
        try:
            for directory in (os.path.dirname(pipes), pipes):
                check_directory(directory)
        except OSError:  # none was started, or the directory is another user's
            return False
        if self.why_not():
            return False
        return self._run([], "get_server_list\n", uuid).returncode == 0

    def directories(self, uuid: str) -> tuple[str, str]:
        """Pipe and log directory of the GPU's daemon."""
        name = hashlib.sha256(f"{self._owner} {uuid}".encode()).hexdigest()[:12]
        base = os.path.join(self._parent, f"unidle-mps-{name}")
        return os.path.join(base, "pipe"), os.path.join(base, "log")

    def _run(self, arguments: list[str], typed: str, uuid: str) -> subprocess.CompletedProcess[str]:
        pipes, logs = self.directories(uuid)
        env = self._environ | {
            "CUDA_VISIBLE_DEVICES": uuid,
            "CUDA_MPS_PIPE_DIRECTORY": pipes,
            "CUDA_MPS_LOG_DIRECTORY": logs,
        }
        command = [CONTROL, *arguments]
        # a file, not a pipe: the daemon may keep it open, and a pipe would then never end
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            try:
                code = subprocess.run(
                    command, input=typed, env=env, stdout=said, stderr=said, text=True, timeout=ANSWER_S,
                    start_new_session=True, check=False,
                ).returncode  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                return subprocess.CompletedProcess(command, 1, str(error), "")
            said.seek(0)
            return subprocess.CompletedProcess(command, code, said.read(), "")
