"""The first stage of a save: this rank's shard, copied into memory that outlives the process."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from unidle.checkpoint.holder import hold_paths, memory_copies
from unidle.checkpoint.holder.memory_copies import PAGE, Label
from unidle.checkpoint.layout import encode_header

DTYPES: Final[dict[torch.dtype, str]] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_SLOTS: Final = 4  # the newest whole one, one being written to, one on its way to storage, one to the peer

# key: the tensor, and of which tensor it is a part, where in it, and that tensor's shape
Pieces = dict[str, tuple[Tensor, str, tuple[int, ...], tuple[int, ...]]]


def cuda_in_use() -> bool:
    """Whether this process uses a GPU. The check does not initialize CUDA."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class StagingSlot:
    """One file in memory, mapped; ``busy`` holds what still reads it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.busy: set[str] = set()
        self._size = -1
        self._memory: Tensor | None = None
        self._map: mmap.mmap | None = None
        self._pinned = False
        self._head: bytes = b""
        self._views: dict[str, Tensor] = {}

    def copy(
        self, label: Label, head: bytes, places: dict[str, tuple[int, int]], pieces: Pieces, own: bytes
    ) -> bool:
        """Copy pieces and the rank's own state to their places. True if a copy of a GPU is still pending."""
        self._fit(label.size_bytes)
        assert self._map is not None
        assert self._memory is not None
        self._map[:PAGE] = memory_copies.page_of(None)
        if head != self._head:
            self._head = head
            self._views = {key: self._view(places[key], piece[0]) for key, piece in pieces.items()}
            self._map[PAGE : PAGE + len(head)] = head
        on_gpu = False
        for key, (tensor, *_) in pieces.items():
            on_gpu |= tensor.is_cuda
            self._views[key].copy_(tensor, non_blocking=True)
        start, end = places["@own"]
        self._map[PAGE + start : PAGE + end] = own
        return on_gpu

    def commit(self, label: Label) -> None:
        """Mark the copy as complete."""
        assert self._map is not None
        self._map[:PAGE] = memory_copies.page_of(label)

    def _view(self, place: tuple[int, int], like: Tensor) -> Tensor:
        assert self._memory is not None
        part = self._memory[PAGE + place[0] : PAGE + place[1]]
        return part.view(like.dtype).view(like.shape)

    def _fit(self, size: int) -> None:
        if size == self._size:
            return
        if self._memory is not None and self._pinned:
            _cudart().cudaHostUnregister(self._memory.data_ptr())
        self._views, self._memory, self._map, self._head, self._pinned = {}, None, None, b"", False
        hold, name = os.path.split(self.path)
        with (
            hold_paths.held(hold) as at,
            os.fdopen(hold_paths.open_copy(name, at, os.O_RDWR | os.O_CREAT), "r+b") as file,
        ):
            # reserved at once: a full memory file system is then an error here, not a signal later
            os.posix_fallocate(file.fileno(), 0, PAGE + size)
            file.truncate(PAGE + size)
            self._map = mmap.mmap(file.fileno(), 0)
        self._memory = torch.frombuffer(self._map, dtype=torch.uint8)
        self._size = size
        if cuda_in_use():
            # pinned, so that a GPU copies into it at full speed and in the background
            _cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)
            self._pinned = True


class StagingArea:
    """The slots of this rank."""

    def __init__(self, hold: str, rank: int, world: int, session: str) -> None:
        self._hold, self._rank, self._world, self._session = hold, rank, world, session
        self._slots: list[StagingSlot] = []
        self._newest: int | None = None
        self._layout: tuple[object, bytes, dict[str, tuple[int, int]]] | None = None
        self._finishers: list[threading.Thread] = []

    def free(self) -> int | None:
        """A slot that nothing reads and that is not the newest whole copy; None if there is no such slot."""
        for number, slot in enumerate(self._slots):
            if not slot.busy and number != self._newest:
                return number
        if len(self._slots) == _SLOTS:
            return None
        return len(self._slots)

    def all_sent(self) -> bool:
        """Whether the peer has all copies, or there is no peer."""
        return not any(slot.busy & {"copying", "sent"} for slot in self._slots)

    def released(self, number: int, what: str) -> None:
        self._slots[number].busy.discard(what)

    def release_all(self) -> None:
        """The holder died: there are no readers."""
        for slot in self._slots:
            slot.busy -= {"sent", "written"}

    def copy(
        self, step: int, pieces: Pieces, own: bytes, reads: set[str], then: Callable[[int, str, Label], None]
    ) -> None:
        """Copy into a free slot, call ``then(slot, file name, label)`` once it is whole: at once, or when the GPU is done.

        Raises OSError where memory is full.
        """
        number = self.free()
        assert number is not None
        if number == len(self._slots):
            name = memory_copies.own_name(self._rank, self._session, number)
            self._slots.append(StagingSlot(os.path.join(self._hold, name)))
        slot = self._slots[number]
        head, places = self._head(pieces, len(own))
        size = places["@own"][1]
        label = Label(self._session, step, self._rank, self._world, size, time.time_ns())
        on_gpu = slot.copy(label, head, places, pieces, own)
        slot.busy = {"copying", *reads}
        self._newest = number

        def finish() -> None:
            slot.commit(label)
            slot.busy.discard("copying")
            then(number, os.path.basename(slot.path), label)

        if not on_gpu:
            finish()
            return
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def follow() -> None:
            done.synchronize()
            finish()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        self._finishers = [t for t in self._finishers if t.is_alive()] + [thread]

    def wait(self) -> None:
        """Wait until all copies of the GPU are complete."""
        for thread in self._finishers:
            thread.join()

    def remove(self) -> None:
        """Release the memory when it is no longer used."""
        for slot in self._slots:
            with contextlib.suppress(OSError):
                os.unlink(slot.path)

    def _head(self, pieces: Pieces, own_bytes: int) -> tuple[bytes, dict[str, tuple[int, int]]]:
        """The shard's header; made again only when a shape changed."""
        shapes = (
            own_bytes,
            tuple((key, t.dtype, t.shape, offset) for key, (t, _, offset, _) in pieces.items()),
        )
        if self._layout is None or self._layout[0] != shapes:
            entries = {
                key: (DTYPES[t.dtype], tuple(t.shape), name, offset, whole)
                for key, (t, name, offset, whole) in sorted(
                    pieces.items(), key=lambda item: -item[1][0].element_size()
                )
            }
            head, places = encode_header(entries, own_bytes)
            self._layout = (shapes, head, places)
        return self._layout[1], self._layout[2]
