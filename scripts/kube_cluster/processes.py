"""Starts the processes of a cluster: in its control group from the first instruction on, and in the namespaces of a node.

A node's namespaces live as long as a process in them: nothing on this machine holds them, so nothing of them can be left.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kube_cluster import groups
from kube_cluster.layout import Layout
from kube_cluster.state import Process, State, start_of
from unidle.errors import UnidleError

ANCHOR: Final = "anchor"
_LOG_LINES: Final = 12
_PATH: Final = "/var/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIMIT_S: Final = 120.0
"""For one wait. A cluster of three nodes is up in 15 s on two idle cores."""


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts processes for one cluster and notes them in its state."""

    state: State
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set when the start has failed elsewhere: no thread waits any more."""

    @property
    def layout(self) -> Layout:
        return self.state.layout

    def anchor(self, node: str, *, mounts: bool) -> int:
        """A process that holds new namespaces for ``node``; returns its number. ``mounts``: also of mounts and names."""
        own = ["--mount", "--propagation", "slave", "--uts"] if mounts else []
        words = ["unshare", "--net", *own, "--", "sleep", "infinity"]
        pid = self._spawn(f"{node}/{ANCHOR}", node, words)
        net = Path(f"/proc/{pid}/ns/net")
        here = Path("/proc/self/ns/net").readlink()
        # `sleep` runs once all namespaces are made: its name is not that of this shell any more
        self.until(
            f"{node} has its namespaces",
            lambda: _program(pid) == "sleep" and net.readlink() != here,
            [f"{node}/{ANCHOR}"],
        )
        return pid

    def start(self, name: str, node: str, words: Sequence[str]) -> None:
        """A daemon ``name`` in the namespaces of ``node``; its output goes to the log of this name."""
        self._spawn(name, node, words, self.enter(node))

    def run(self, node: str, words: Sequence[str], text: str = "") -> None:
        """A command in the namespaces of ``node``, to its end. Errors: UnidleError with what it wrote."""
        done = subprocess.run(
            self._joining(node, [*self.enter(node), *words]), input=text, capture_output=True, text=True,
            check=False, env=_environment(),
        )  # fmt: skip
        if done.returncode != 0:
            why = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
            raise UnidleError(f"{node}: {' '.join(words)[:200]}: {why[-1]}")

    def succeeds(self, node: str, words: Sequence[str]) -> bool:
        """Whether a command in the namespaces of ``node`` ends with exit code 0."""
        try:
            self.run(node, words)
        except UnidleError:
            return False
        return True

    def enter(self, node: str) -> list[str]:
        """Words before a command that is to run in the namespaces of ``node``."""
        return entering(self.state.processes[f"{node}/{ANCHOR}"].pid)

    def _joining(self, node: str, words: Sequence[str]) -> list[str]:
        script = groups.join_script(f"{self.layout.group}/{node}") + 'exec "$@"\n'
        return [groups.shell(), "-c", script, "sh", *words]

    def _spawn(self, name: str, node: str, words: Sequence[str], enter: Sequence[str] = ()) -> int:
        with self.layout.log(name).open("ab") as log:
            child = subprocess.Popen(
                self._joining(node, [*enter, *words]), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env=_environment(), start_new_session=True,
            )  # fmt: skip
        _CHILDREN.append(child)
        self.state.add(Process(name, node, child.pid, start_of(child.pid), tuple(words)))
        return child.pid

    def until(
        self, what: str, holds: Callable[[], object], needs: Sequence[str], limit_s: float = _LIMIT_S
    ) -> None:
        """Wait until ``holds``. Errors: UnidleError when a process of ``needs`` has ended, or when it takes too long."""
        end_s = time.monotonic() + limit_s
        while not holds():
            if self.stopped.is_set():
                raise UnidleError(f"stopped before {what}")
            for name in needs:
                if not self.state.processes[name].alive:
                    raise UnidleError(f"{name} has ended before {what}{self._last(name)}")
            if time.monotonic() > end_s:
                raise UnidleError(
                    f"after {limit_s:.0f} s it still does not hold that {what}{self._last(*needs)}"
                )
            time.sleep(0.05)

    def _last(self, *names: str) -> str:
        """The end of the logs of some processes, as part of a message."""
        parts = []
        for name in names:
            lines = self.layout.log(name).read_text(errors="replace").splitlines()[-_LOG_LINES:]
            parts.append(
                f" | last lines of {self.layout.log(name)}: " + " / ".join(line[:300] for line in lines)
            )
        return "".join(parts)


_CHILDREN: Final[list[subprocess.Popen[bytes]]] = []
"""Held, so that Python does not warn about daemons that outlive this process."""


def entering(anchor: int) -> list[str]:
    """Words that run a command in the namespaces of a node. Not ``ip netns exec``, which hides the control groups."""
    return ["nsenter", f"--target={anchor}", "--net", "--mount", "--uts", "--"]


def _program(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _environment() -> dict[str, str]:
    """Nothing of the caller's environment changes how a cluster works."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("UNIDLE_TEST_")}
    return {"PATH": _PATH, "HOME": "/root", **kept}
