"""Warm starts: ranks of PyTorch jobs fork from a Python that has imported PyTorch already.

One warm Python per interpreter and environment, of a few hundred MB that all its ranks share with it.
It is an offer: whatever it cannot do, or not yet, is started cold.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from unidle.engine.local.ranks.supervisor.script_runner import script_of

MODULES: Final = ("torch", "torch.distributed", "torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch._dynamo", "torch.utils.data")  # fmt: skip
_PYTHON: Final = re.compile(r"python(\d(\.\d+)?)?\Z")
_ANSWER_S: Final = 2.0
_WORTH_S: Final = 8.0  # of waiting: so long does it take when all ranks import at once on few cores
_HERE: Final = str(Path(__file__).parent)
# The package goes by a name that no script imports, nothing stays in sys.path, and the working directory is not in it: in
# that one anybody may have written a module. (`-P` is not known to Pythons before 3.11.)
_BOOT: Final = (
    "import sys;sys.path=[sys.argv[1]+'/../../../..',*filter(None,sys.path)];import importlib.util as u;"
    "s=u.spec_from_file_location('_unidle_local',sys.argv[1]+'/__init__.py',submodule_search_locations=[sys.argv[1]]);"
    "m=u.module_from_spec(s);sys.modules['_unidle_local']=m;s.loader.exec_module(m);"
    "from _unidle_local.supervisor.fork_server import main;sys.path.pop(0);main(sys.argv[2:])"
)


class _Zygote:
    __slots__ = ("channel", "process", "ready", "wanted_s", "why_not")

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.ready = False
        self.why_not = ""
        self.wanted_s = 0.0  # when somebody began to wait for it


class WarmPool:
    """The warm Pythons of one engine: what they import, and how long a start waits for one that still does."""

    def __init__(self, modules: Sequence[str] = MODULES, worth_s: float = _WORTH_S) -> None:
        self._modules, self._worth_s = tuple(modules), worth_s
        self._zygotes: dict[tuple[str, tuple[tuple[str, str], ...]], _Zygote] = {}

    def prepare(self, argv: Sequence[str], env: Mapping[str, str]) -> str:
        """Have a warm Python for commands like this; returns why there will be none, else nothing.

        ``env`` is the environment of its ranks as far as all of them, and all attempts, have it.
        """
        key = _key(argv, env)
        if key is None:
            return "the command is not `python SCRIPT` or `python -m MODULE`"
        if key not in self._zygotes:
            self._zygotes[key] = self._begin(key)
        zygote = self._zygotes[key]
        self._hear(zygote, 0.0)
        return zygote.why_not

    def is_near(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether a start should wait a little: a warm Python for it is still importing, which is hurried on from now."""
        key = _key(argv, env)
        zygote = self._zygotes.get(key) if key is not None else None
        if zygote is None or self._is_ready(zygote) or zygote.why_not:
            return False
        zygote.wanted_s = zygote.wanted_s or time.monotonic()
        with contextlib.suppress(OSError):  # else it takes only time that nobody else wants
            os.sched_setscheduler(zygote.process.pid, os.SCHED_OTHER, os.sched_param(0))
        return time.monotonic() - zygote.wanted_s < self._worth_s

    def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], directory: str, fds: Sequence[int], space: str = ""
    ) -> int | None:
        """Start the supervisor of a rank directory from a warm Python; its pid, or None: start it cold."""
        key = _key(argv, env)
        zygote = self._zygotes.get(key) if key is not None else None
        if zygote is None or not self._is_ready(zygote):
            return None
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        try:
            zygote.channel.sendmsg([json.dumps({"directory": directory, "netns": space}).encode()], [rights])
            zygote.channel.settimeout(_ANSWER_S)
            return int(json.loads(zygote.channel.recv(4096))["pid"])
        except (OSError, ValueError, KeyError):
            self._end(zygote, "it did not answer")
            return None

    def close(self) -> None:
        """End all warm Pythons; the ranks that came from them continue."""
        for zygote in self._zygotes.values():
            self._end(zygote, "closed")
        self._zygotes.clear()

    def _begin(self, key: tuple[str, tuple[tuple[str, str], ...]]) -> _Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        python, env = key
        arguments = [python, "-c", _BOOT, _HERE, str(theirs.fileno()), *self._modules]
        process = subprocess.Popen(
            arguments, env=dict(env), pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        return _Zygote(process, ours)

    def _is_ready(self, zygote: _Zygote) -> bool:
        if not zygote.ready and not zygote.why_not:
            self._hear(zygote, 0.0)
        return zygote.ready and not zygote.why_not

    def _hear(self, zygote: _Zygote, timeout_s: float) -> None:
        """Take in that it is ready, or has ended."""
        if zygote.ready or zygote.why_not:
            return None
        zygote.channel.settimeout(timeout_s)
        try:
            told = zygote.channel.recv(4096)
        except (BlockingIOError, socket.timeout):
            return None
        except OSError as error:
            return self._end(zygote, str(error))
        if not told:
            return self._end(zygote, "it ended during its imports")
        said = json.loads(told)
        if "torch" in said["missing"]:
            return self._end(zygote, "its Python has no PyTorch")
        if said["threads"] > 1:
            return self._end(zygote, f"{said['threads']} threads run after the imports: it cannot be forked")
        zygote.ready = True
        return None

    def _end(self, zygote: _Zygote, why: str) -> None:
        zygote.why_not = zygote.why_not or why
        zygote.channel.close()
        zygote.process.kill()
        zygote.process.wait()


def _key(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    if not argv or script_of(argv) is None:
        return None
    python = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if python is None or _PYTHON.match(os.path.basename(python)) is None:
        return None
    return os.path.abspath(python), tuple(sorted(env.items()))
