"""A run as a user starts it, with what it says line by line, and faults that are put into it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from e2e import commands

# What is said at once is one line, however much of it there is on a busy machine.
_WIDE = {"COLUMNS": "4000"}


class Live:
    """``unidle span run`` in a process of its own; iterate over its lines."""

    def __init__(self, *words: str, give_up_s: float = 30, env: dict[str, str] | None = None) -> None:
        self.said: list[str] = []
        self._process = commands.start(
            "span", "run", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **_WIDE, "UNIDLE_SPAN_GIVE_UP_S": str(give_up_s), **(env or {})},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        if kind is not None:
            os.set_blocking(self._process.stdout.fileno(), False)  # a rank that is left may hold it open
            with contextlib.suppress(BlockingIOError):
                self.said.append(os.read(self._process.stdout.fileno(), 1 << 16).decode(errors="replace"))
            print("\n".join(self.said))
        self._process.stdout.close()

    def __iter__(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip())
            yield self.said[-1]

    def until(self, text: str) -> str:
        """The first line from now on that has ``text``; fails when the run ends before."""
        for line in self:
            if text in line:
                return line
        raise AssertionError(f"it never said {text!r}:\n" + "\n".join(self.said))

    def end(self) -> int:
        """Its exit code, once it has ended."""
        for _ in self:
            pass
        return self._process.wait(120)

    def steps_of_attempt(self, number: int, steps: int) -> int:
        """The step that this attempt began after, once it has done so many."""
        found = re.search(
            r"continues after step (\d+)", self.until(f"attempt {number}: continues after step")
        )
        assert found is not None
        self.until(f"step {int(found[1]) + steps:>5} ")
        return int(found[1])

    def stop(self) -> int:
        """Its exit code, after SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        """As a host that is gone; its ranks have to be killed, too."""
        self._process.kill()

    @property
    def losses(self) -> dict[int, str]:
        """The loss of each step as it was printed last."""
        found = (re.match(r"step +(\d+) +loss (\S+)", line) for line in self.said)
        return {int(match[1]): match[2] for match in found if match}

    def ranks(self, device: str) -> list[int]:
        """Process ids of the ranks of a device, of this run: they hold its records open, which are in the store's directory.

        It takes as long as steps do, so look before the step that is waited for.
        """
        store = self._process.args[self._process.args.index("--store") + 1]  # type: ignore[union-attr, index]
        records = re.compile(rf"{re.escape(store)}\.d/span/[^/]+/out-\d+/{device.replace('/', '-')}\.jsonl")
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                fds = entry.glob("fd/*") if b"_unidle_local" in words or b"unidle.span.rank" in words else ()
                if any(records.fullmatch(str(fd.readlink())) for fd in fds):
                    found.append(int(entry.name))
        return found

    def cut(self, a: str, b: str) -> None:
        """Nothing passes between two nodes any more."""
        self._route("add", a, b)

    def mend(self, a: str, b: str) -> None:
        self._route("del", a, b)

    def slow(self, a: str, b: str, mbit: int) -> None:
        """What goes from one node to another has so much less room."""
        words = ["ip", "netns", "exec", self._space(a), "tc", "class", "show", "dev", "eth0"]
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        classes = [found for found in re.findall(r"class htb (\S+)", told) if found != "1:1"]
        assert len(classes) == 1, (b, told)
        change = f"change dev eth0 parent 1: classid {classes[0]} htb rate {mbit}mbit burst 32k".split()
        subprocess.run([*words[:6], *change], check=True, capture_output=True)

    def _route(self, what: str, a: str, b: str) -> None:
        for one, other in ((a, b), (b, a)):
            words = ["ip", "-n", self._space(one), "route", what, "blackhole", f"{self._address(other)}/32"]
            subprocess.run(words, check=True, capture_output=True)

    def _space(self, node: str) -> str:
        return f"ud{self._process.pid}-{node}"

    def _address(self, node: str) -> str:
        words = ["ip", "-n", self._space(node), "-4", "addr", "show", "eth0"]
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        found = re.search(r"inet (\S+)/", told)
        assert found is not None, told
        return found[1]
