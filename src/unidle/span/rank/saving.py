"""Checkpoints during the training: the state is copied at the end of a step, a thread writes the copy.

``unidle.rank.checkpoint`` does the same for ranks of one process group: its copies go to a holder per node that outlives them, and it speaks
over that group. Ranks of a span have no group, and their peers are on other sites; format, header and checksums are the same code.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unidle.errors import CannotRun
from unidle.span.rank.checkpoint import Keeper
from unidle.span.rank.shards import State
from unidle.span.rank.tensors import host_buffer, shape_of


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint. ``begin_ns`` to ``end_ns``: from the copy on; ``stall_ns``: how long training was
    blocked.
    """

    step: int
    path: str
    begin_ns: int
    end_ns: int
    stall_ns: int


class Saver:
    """At most one save is in progress; the next one waits. Calls are made by all ranks at the same step.

    ``saved`` is called for each whole checkpoint by one rank of those that share a directory, ``failed`` of a step and why by one rank;
    both in a thread.
    """

    def __init__(
        self, keeper: Keeper, saved: Callable[[Saved], None], failed: Callable[[int, str], None]
    ) -> None:
        self._keeper, self._saved, self._failed = keeper, saved, failed
        self._held: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._problem = ""
        self._error: BaseException | None = None

    def save(self, step: int, state: State) -> None:
        """Start a save; the state may change after this returns. Errors: those of the previous save, except for a
        full disk.
        """
        begun = time.monotonic_ns()
        self.wait()
        tensors: dict[str, Tensor] = {}
        own: dict[str, Any] = {}
        if self._keeper.writes:
            tensors, own = self._copied(state.tensors()), copy.deepcopy(state.own())
        stall = time.monotonic_ns() - begun
        self._thread = threading.Thread(
            target=self._work, args=(step, tensors, own, begun, stall), name=f"span-save-{step}", daemon=True
        )
        self._thread.start()

    def wait(self) -> str:
        """Wait until no save is in progress; return why the last save failed, if it did. Errors: WanError."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
        return self._problem

    def close(self) -> None:
        """The last one is on storage. Errors: CannotRun where it is not, WanError."""
        if problem := self.wait():
            raise CannotRun(
                f"{problem}; it was the last", field="checkpoint.directory", value=self._keeper.directory,
                remedy="make room there, and resume from the one before",
            )  # fmt: skip

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In host memory, which is used again for each save."""
        found, on_gpu = {}, None
        for name, tensor in tensors.items():
            held = self._held.get(name)
            if held is None or shape_of(held) != shape_of(tensor):
                held = host_buffer(shape_of(tensor), tensor.device.type)
            held.copy_(tensor, non_blocking=True)
            on_gpu = tensor.device if tensor.is_cuda else on_gpu
            found[name] = held
        if on_gpu is not None:
            torch.cuda.current_stream(on_gpu).synchronize()
        self._held = found
        return found

    def _work(
        self, step: int, tensors: dict[str, Tensor], own: dict[str, Any], begun: int, stall: int
    ) -> None:
        def whole(path: str) -> None:
            self._saved(Saved(step, path, begun, time.monotonic_ns(), stall))

        try:
            self._problem, mine = self._keeper.write(step, tensors, own, whole)
            if mine:
                self._failed(step, self._problem)
        except BaseException as error:  # the thread that trains has to know
            self._error = error
