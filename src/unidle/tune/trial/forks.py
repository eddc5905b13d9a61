"""Runs of a program that are forked from a process which has imported PyTorch, so that imports are not paid for each run.

Only for programs for which that is faithful: ``python script.py`` or ``python -m module``, without an accelerator, whose imports start
no threads that a fork would lose. A program that changes its environment or its paths before it imports PyTorch is found when it does so.
What forks share, such as the seed of hashes and addresses, is that of one server; so each round of a race has a server of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from unidle.tune.trial.child import (
    INJECT,
    TrialRun,
    child_environment,
    contained_words,
    kill_all,
    text_of,
)
from unidle.tune.trial.marks import StepWatch

_UNSAFE: Final = 213
_PYTHON: Final = re.compile(r"python[0-9.]*")
_FLAG: Final = re.compile(r"-(u|B|O|OO|[WX].+)")
_HARNESS: Final = frozenset({"__main__", "__mp_main__", "sitecustomize", "tune_sampler", "tune_serving"})
_MOST_BYTES: Final = 1 << 12
_START_S: Final = 300.0


class ForkUnsafe(Exception):
    """Why runs of this program need processes of their own."""


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """How to fork a program. ``before``: words up to the script or module; ``names`` are imported, ``own`` are modules of the tree."""

    before: tuple[str, ...]
    module: bool
    names: tuple[str, ...]
    own: tuple[str, ...]

    @property
    def torch_only(self) -> ForkPlan:
        """For runs whose hooks have to be there before anything else imports PyTorch."""
        first = next(at for at, name in enumerate(self.names) if name.partition(".")[0] == "torch")
        late = tuple(name for name in self.names[first:] if name.partition(".")[0] == "torch")
        return ForkPlan(self.before, self.module, (*self.names[:first], *late), self.own)


def fork_plan(command: Sequence[str], modules: Path, trees: Sequence[Path]) -> ForkPlan | None:
    """From a run that wrote its modules; None if its runs need processes of their own. ``trees`` have the program's own files."""
    words = _words_before(command)
    relative = any(not Path(one).is_absolute() for one in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))  # fmt: skip
    if words is None or relative or any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists():
        return None
    try:
        found = json.loads(modules.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    inside = tuple(f"{one}{os.sep}" for one in trees)
    own = tuple(name for name, origin in found if origin.startswith(inside))
    names = tuple(name for name, origin in found if name not in _HARNESS and not origin.startswith(inside))
    return ForkPlan(*words, names, own) if "torch" in names else None


def _words_before(command: Sequence[str]) -> tuple[tuple[str, ...], bool] | None:
    """The words up to the script or module, and whether it is a module."""
    if not command or not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    at = 1
    while at < len(command) and _FLAG.fullmatch(command[at]):
        at += 1
    if at >= len(command):
        return None
    if command[at] == "-m" and at + 1 < len(command):
        return tuple(command[:at]), True
    return None if command[at].startswith("-") else (tuple(command[:at]), False)


@dataclass(slots=True)
class ForkServer:
    """A process that forks runs. Several threads may run programs at once."""

    plan: ForkPlan
    process: subprocess.Popen[bytes]
    control: socket.socket
    mark: str
    lock: Lock = field(default_factory=Lock)

    def ready(self, limit_s: float) -> None:
        """Wait until it has imported. Errors: ForkUnsafe."""
        if not select.select([self.control], [], [], min(limit_s, _START_S))[0]:
            raise ForkUnsafe("its imports take too long")
        said = self.control.recv(_MOST_BYTES)
        if why := json.loads(said)["why"] if said else "its imports fail in a process of their own":
            raise ForkUnsafe(why)

    def run(
        self, command: Sequence[str], folder: Path, scratch: Path, limit_s: float, more: Mapping[str, str], watch: StepWatch | None
    ) -> TrialRun:  # fmt: skip
        """As :func:`unidle.tune.trial.child.run_child`; times count from the start of the program. Errors: ForkUnsafe, OSError."""
        name = secrets.token_hex(12)
        environment = dict(more) | (watch.open(name) if watch is not None else {})
        out, err = scratch / f"{name}.out", scratch / f"{name}.err"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with ours, out.open("wb+") as printed, err.open("wb+") as errors:
                with theirs:
                    files = [theirs.fileno(), printed.fileno(), errors.fileno()]
                    self._send(self._request(command, folder, environment), files)
                found = _kept(ours, limit_s, watch)
                texts = text_of(printed), text_of(errors)
        finally:
            if watch is not None:
                watch.close(name)
            out.unlink(missing_ok=True)
            err.unlink(missing_ok=True)
        if found.code == _UNSAFE and not found.why:
            raise ForkUnsafe(texts[1].rpartition("not forked: ")[2].strip() or "it ended with 213")
        marks = tuple(watch.marks) if watch is not None else ()
        return TrialRun(
            found.code, found.wall_s, found.cpu_s, *texts, found.why == "late", marks, found.why == "stopped"
        )

    def _request(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> bytes:
        plan = self.plan
        words = list(command[len(plan.before) + plan.module :])
        return json.dumps({
            "words": words, "flags": plan.before[1:], "module": plan.module, "folder": str(folder), "environment": environment,
        }).encode()  # fmt: skip

    def _send(self, request: bytes, files: Sequence[int]) -> None:
        """Errors: ForkUnsafe if the server is gone."""
        with self.lock:
            try:
                socket.send_fds(self.control, [request], list(files))
            except OSError as error:
                raise ForkUnsafe("the process that forks it has ended") from error

    def close(self) -> None:
        """End it, with all that it forked."""
        self.control.close()
        kill_all(self.process.pid, self.mark)
        self.process.wait()


def start_server(plan: ForkPlan, command: Sequence[str], folder: Path, scratch: Path, limit_s: float, more: Mapping[str, str]) -> ForkServer:  # fmt: skip
    """Start a server in a folder; it ends with the thread that calls this. Errors: OSError."""
    mark = secrets.token_hex(12)
    file = scratch / f"{mark}.plan"
    words = list(command[len(plan.before) + plan.module :])
    file.write_text(json.dumps({"words": words, "names": plan.names, "own": plan.own}), encoding="utf-8")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        started = [*plan.before, str(INJECT / "tune_forks.py"), str(theirs.fileno()), str(file)]
        process = subprocess.Popen(
            contained_words(started, limit_s), cwd=folder, env=child_environment(mark, more), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    return ForkServer(plan, process, ours, mark)


@dataclass(frozen=True, slots=True)
class _KeptRun:
    """How a run ended; ``why`` it was ended: late, stopped or, if it ended by itself, an empty text."""

    code: int
    cpu_s: float
    wall_s: float
    why: str


def _kept(talk: socket.socket, limit_s: float, watch: StepWatch | None) -> _KeptRun:
    """Follow a run from its start to its end. Errors: ForkUnsafe if it did not begin."""
    begun = _message(talk, limit_s)
    if not begun.startswith(b"start "):
        raise ForkUnsafe("it did not begin in time" if not begun else begun.decode("utf-8", "replace"))
    begin = time.monotonic()
    if watch is not None:
        watch.begin = begin
    why = ""
    while not (said := _message(talk, 0.0 if watch is not None and not why else 0.1)):
        if why:
            continue
        if watch is not None and watch.wait():
            why = "stopped"
        elif time.monotonic() > begin + limit_s:
            why = "late"
        if why:
            with contextlib.suppress(OSError):
                talk.send(b"stop")
    wall = time.monotonic() - begin
    found = json.loads(said)
    return _KeptRun(found["code"], found["cpu_s"], wall, why)


def _message(talk: socket.socket, wait_s: float) -> bytes:
    """The next message; empty if there is none yet. Errors: ForkUnsafe at the end of all messages."""
    if not select.select([talk], [], [], wait_s)[0]:
        return b""
    try:
        said = talk.recv(_MOST_BYTES)
    except OSError:
        said = b""
    if not said:
        raise ForkUnsafe("the process above it has ended")
    return said
