"""Starts commands as processes of their own, each name once, and reports how they ended.

The directory of a name is made before its process, and stays. So a later controller or agent finds what was begun before.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from unidle.clock import boot_id
from unidle.engine.local.commands import process
from unidle.engine.local.ranks import rundir
from unidle.engine.node_commands import LinkCheck, NodeCheck, NodeCommand, NodeOutcome
from unidle.rank.probe import SECRET_VARIABLE

_KEPT: Final = 200
LINKS_COMPLETE: Final = 16  # nodes between which each pair is measured: at half a second about 10 s


class CommandRunner:
    """``root`` keeps one directory for each name, to be read later; those of the last 200 that ended stay."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._children: list[int] = []

    def begin(
        self, name: str, words: Sequence[str], limit_ns: int, env: Mapping[str, str] | None = None
    ) -> None:
        """Start it, unless it was started before. Where there is no room, the caller's time limit shows it.

        ``env``: more variables. They are in a file of this user alone, and in no argument.
        """
        directory = self._root / name
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            directory.mkdir()
            order = {
                "words": list(words),
                "limit_s": limit_ns / 1e9,
                "boot": boot_id(),
                "env": dict(env or {}),
            }
            with open(directory / "order.json", "w", opener=_private) as file:
                json.dump(order, file)
            with open(directory / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._children.append(_spawn(str(directory), lock.fileno()))
        except OSError:
            return
        self._prune()

    def knows(self, name: str) -> bool:
        """Whether it was begun, by whomever."""
        return (self._root / name).is_dir()

    def look(self, name: str) -> NodeOutcome | None:
        """How it ended; None while it runs, or if it was not begun."""
        self._children = [pid for pid in self._children if not _collected(pid)]
        directory = self._root / name
        if (found := _result(directory)) is not None:
            return found
        if not directory.is_dir() or rundir.is_held(directory / "lock"):
            return None
        return _result(directory) or _unseen(directory)

    def _prune(self) -> None:
        done = [entry for entry in self._root.iterdir() if (entry / "result.json").exists()]
        if len(done) > _KEPT:
            for entry in sorted(done, key=lambda e: e.stat().st_mtime_ns)[: len(done) - _KEPT]:
                shutil.rmtree(entry, ignore_errors=True)


def check_words(node: str, check: NodeCheck, offset_ns: int) -> tuple[str, ...]:
    """The command of unidle's own check of a node. ``offset_ns``: from this machine's CLOCK_BOOTTIME to the clock of the check."""
    words = [sys.executable, "-P", "-m", "unidle", "check", "--json", "--tier", check.tier, "--node", node]
    if check.log_since_ns is not None:
        words += ["--log-since", f"{max(check.log_since_ns - offset_ns, 0) // 1_000_000 / 1e3:.3f}"]
    if check.kernel_log:
        words.append(f"--kernel-log={check.kernel_log}")
    if check.whole_node:
        words.append("--whole-node")
    return (*words, *(f"--used={path}" for path in check.used))


def link_words(node: str, check: LinkCheck) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command of one node's part in a check between nodes, and its variables."""
    policy = check.policy
    words = [sys.executable, "-P", "-m", "unidle.probe.check.between", "--node", node, "--brief"]
    words += ["--complete", str(LINKS_COMPLETE)]
    words += ["--join", "20", "--wait", "5", "--seconds", f"{policy.measure_ns / 1e9:.3f}"]
    words += ["--gbps", f"{policy.least_mbps / 1000:.3f}"] if policy.least_mbps is not None else []
    words += ["--collective", policy.method] if policy.method != "tcp" else []
    words += [f"--ports={policy.ports[0]}-{policy.ports[1]}"] if policy.ports is not None else []
    env = {"RANK": str(check.rank), "WORLD_SIZE": str(check.world), SECRET_VARIABLE: check.secret}
    return tuple(words), env | {"MASTER_ADDR": check.address, "MASTER_PORT": str(check.port)}


class LocalCommands:
    """:class:`unidle.engine.node_commands.NodeCommands` where all nodes are parts of this machine.

    ``offset_ns``: from its CLOCK_BOOTTIME to the clock of the log of events.
    """

    elsewhere: Final = False

    def __init__(self, root: Path, offset_ns: int) -> None:
        self._runner, self._offset_ns = CommandRunner(root), offset_ns

    def away(self, node: str) -> str:  # noqa: ARG002 - this machine is there
        return ""

    def begin(self, order: NodeCommand) -> None:
        """A check runs in the network namespace of its node, where that has one."""
        what = order.what
        env: dict[str, str] = {}
        if isinstance(what, NodeCheck):
            words = check_words(order.node, what, self._offset_ns)
        elif isinstance(what, LinkCheck):
            words, env = link_words(order.node, what)
        else:
            words = what
        if order.netns and not isinstance(what, tuple):
            words = ("ip", "netns", "exec", order.netns, *words)
        self._runner.begin(order.name, words, order.limit_ns, env)

    def look(self, name: str) -> NodeOutcome | None:
        return self._runner.look(name)

    def forget(self, name: str) -> None:
        """Nothing to do: what is on the disk is pruned."""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _spawn(directory: str, lock_fd: int) -> int:
    """The process that runs the order, in a session of its own; it takes the lock over, as its descriptor 3."""
    words = [sys.executable, "-I", "-S", process.__file__, directory]
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    os.set_inheritable(lock_fd, True)  # where it is 3 itself, the copy alone would not do that
    actions = [(os.POSIX_SPAWN_DUP2, lock_fd, 3), *nowhere]
    return os.posix_spawn(sys.executable, words, os.environ, file_actions=actions, setsid=True)


def _collected(pid: int) -> bool:
    """Whether the child has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _result(directory: Path) -> NodeOutcome | None:
    with suppress(OSError, ValueError, KeyError):
        told = json.loads((directory / "result.json").read_text())
        return NodeOutcome(told["code"], told["late"], told["text"])
    return None


def _unseen(directory: Path) -> NodeOutcome:
    """It ended, and left no result: with its machine, or by a signal."""
    with suppress(OSError, ValueError, KeyError):
        if json.loads((directory / "order.json").read_text())["boot"] != boot_id():
            return NodeOutcome(None, False, "the machine restarted while it ran", restarted=True)
    return NodeOutcome(None, False, "its end was not seen")
