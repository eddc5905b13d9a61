"""Where the program's main thread spends its time: stacks of lines of the tree, with the part of a step they belong to.

A timer interrupts the thread. Python runs the handler when the call that it was in returns, so a sample has the time since the one before.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

PERIOD_S = 0.005
MOST_FRAMES = 40
MOST_STACKS = 20_000
PARTS = (
    ("torch/utils/data/dataloader.py", "data"), ("torch/optim/", "optimizer"), ("torch/autograd/__init__.py", "backward"),
    ("torch/autograd/graph.py", "backward"), ("torch/serialization.py", "checkpoint"), ("torch/distributed/", "communication"),
    ("torch/nn/parallel/", "communication"), ("torch/nn/modules/", "forward"), ("torch/nn/functional.py", "forward"),
)  # fmt: skip
"""The part of a step that code of PyTorch belongs to. The outermost that is in a stack decides."""


class StackSampler:
    """Samples from its start until :meth:`write`; ``steps`` are counted by the hooks."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tree = f"{Path.cwd()}/"
        self.pid = os.getpid()
        self.clock = time.perf_counter
        self.parts: dict[str, str] = {}
        self.serving: Any = None
        """The module with the requests, if there are any."""
        self.reset(0)
        signal.signal(signal.SIGALRM, self.sample)
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, PERIOD_S, PERIOD_S)
        atexit.register(self.at_end)

    def reset(self, step: int) -> None:
        """Forget what was seen before this step."""
        self.seen: defaultdict[tuple[str, tuple[tuple[str, int, str], ...]], float] = defaultdict(float)
        self.begin = self.last = self.clock()
        self.first = self.step = step

    def sample(self, _signal: int, frame: FrameType | None) -> None:
        """The stack of the main thread now."""
        now = self.clock()
        lasted, self.last = now - self.last, now
        found: list[tuple[str, int, str]] = []
        part, below = "", ""
        codes = set()
        while frame is not None:
            code = frame.f_code
            codes.add(code)
            name = code.co_filename
            if name not in self.parts:
                self.parts[name] = self.part_of(name)
            kind = self.parts[name]
            if kind == "tree":
                own = name[len(self.tree) :] if name.startswith("/") else name
                if below and not found:
                    found.append(("", 0, below))
                found.append((own, frame.f_lineno, code.co_name))
            elif kind != "harness":
                below = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
                part = kind or part
            frame = frame.f_back
        if self.serving is not None:
            part = self.serving.phase(codes) or part
        if found and (len(self.seen) < MOST_STACKS or (part, tuple(found)) in self.seen):
            self.seen[part or "python", tuple(found[:MOST_FRAMES])] += lasted
        else:
            self.seen[part or "python", ()] += lasted

    def part_of(self, name: str) -> str:
        """``tree``, ``harness``, a part of a step, or nothing."""
        if name == __file__ or name.endswith(("inject/sitecustomize.py", "inject/tune_serving.py")):
            return "harness"
        if name.startswith(self.tree) or not name.startswith(("/", "<")):
            return "tree"
        return next((part for text, part in PARTS if text in name), "")

    def write(self, step: int) -> None:
        """What was seen up to this step, in place of what was written before."""
        self.step = step
        rows = [[part, [*reversed(stack)], lasted] for (part, stack), lasted in self.seen.items()]
        found: dict[str, Any] = {"first": self.first, "step": step, "seconds": self.clock() - self.begin, "rows": rows}  # fmt: skip
        if self.serving is not None:
            found["requests"] = [[name.removeprefix(self.tree), *more] for name, *more in self.serving.rows()]
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            json.dump(found, file)
        Path(f"{self.path}.new").replace(self.path)

    def at_end(self) -> None:
        """The rest, of a program without steps."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() == self.pid and not self.first:
            self.write(self.step)
