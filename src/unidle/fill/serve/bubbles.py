"""Prefill in the bubbles of training: a filler in pieces (:class:`unidle.fill.sliced.Sliced`) that a front door sends prompts to.

    unidle.fill.serve.bubbles:BubblePrefill   with the keywords  model: DIRECTORY, door: SOCKET

A piece is one chunk of one prompt through one layer. Where a piece is given up, its prompt begins again. A prompt's keys, values and logits
leave as a file for the dedicated worker, in the piece that completes it.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from unidle.errors import BadInput
from unidle.fill.serve.generate import KV, LOGITS
from unidle.fill.serve.kv.cache import PagedCache
from unidle.fill.serve.kv.pool import blocks_for
from unidle.fill.serve.model.load import load_model
from unidle.fill.serve.piece_times import PieceTimes
from unidle.fill.serve.prefill import PromptPrefill
from unidle.fill.serve.wire import Cancel, Frames, Prefilled, Submit, ToWorker, WorkerGreeting, frame
from unidle.fill.serve.worker import digest
from unidle.fill.sliced import FillPiece, Room

_BLOCK: Final = 16


class BubblePrefill:
    """Prompts in the order of arrival. Errors: :class:`unidle.errors.BadInput` for a model that cannot be loaded, OSError without a door."""

    def __init__(
        self,
        model: str,
        door: str,
        chunk_tokens: int = 256,
        device: str = "cpu",
        dtype: str | None = None,
        threads: int = 1,
    ) -> None:
        torch.set_num_threads(threads)
        self._model = load_model(Path(model), device, dtype)
        # a CPU also computes for others: what they take is no part of a piece, and pieces that seem long would fit no wait
        self._now_ns = time.thread_time_ns if torch.device(device).type == "cpu" else time.perf_counter_ns
        config = self._model.config
        self._tokens = chunk_tokens
        blocks = blocks_for(config.context, _BLOCK)
        self._dtype = getattr(torch, dtype or config.dtype)
        self._cache = PagedCache(config, blocks, _BLOCK, torch.device(device), self._dtype)
        self._table = list(range(blocks))
        self._held_bytes = self._model.weight_bytes + self._cache.kv.numel() * self._cache.kv.element_size()
        self._prompts = deque[Submit]()
        self._current: PromptPrefill | None = None
        self._spent_ns = self._widest_ns = 0
        self._times = PieceTimes()
        self._calibrate()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.connect(door)
        self._frames = Frames(ToWorker)
        self._door.sendall(frame(WorkerGreeting("bubbles", digest(config), os.getpid(), blocks, _BLOCK, 1)))

    @property
    def finished(self) -> bool:
        return False

    def next_piece(self, room: Room) -> FillPiece | None:
        self._receive()
        if not self._prompts or self._held_bytes > room.memory_bytes:
            return None
        current = self._begun()
        length = self._times.length_ns(current.begin, current.end, current.kind)
        self._widest_ns = max(self._widest_ns, room.ns)
        if length > self._widest_ns:
            self._times.doubt(current.kind)  # else it never runs, and is never timed again
        units = current.end - current.begin if current.last_layer else 0
        return FillPiece(length, self._held_bytes, units, self._prompts[0].id)

    def run(self) -> None:
        current = self._begun()
        place = (current.begin, current.end, current.kind)
        begin_ns = self._now_ns()
        current.run()
        if current.done:
            self._leave(current)
        took_ns = self._now_ns() - begin_ns
        self._times.took(*place, took_ns)
        self._spent_ns = 0 if self._current is None else self._spent_ns + took_ns

    def give_up(self) -> int:
        lost, self._spent_ns, self._current = self._spent_ns, 0, None
        return lost

    def close(self) -> None:
        """Leave the door."""
        self._door.close()

    def _begun(self) -> PromptPrefill:
        if self._current is None:
            self._current = PromptPrefill(
                self._model, self._cache, self._table, self._prompts[0].tokens, self._tokens
            )
        return self._current

    def _leave(self, current: PromptPrefill) -> None:
        """Write what decoding needs, and report it. The front door removes the file of a request that was cancelled."""
        submit = self._prompts.popleft()
        self._current = None
        assert submit.handoff is not None
        assert current.logits is not None
        with torch.inference_mode():
            kv = self._cache.read(self._table, len(submit.tokens)).cpu().contiguous()
        save_file({KV: kv, LOGITS: current.logits.cpu()}, submit.handoff)
        self._door.sendall(frame(Prefilled(submit.id, submit.handoff)))

    def _receive(self) -> None:
        while select.select([self._door], [], [], 0)[0]:
            received = self._door.recv(1 << 20)
            if not received:
                raise ConnectionError("the front door has ended")
            for message in self._frames.feed(received):
                if isinstance(message, Submit):
                    self._prompts.append(message)
                elif isinstance(message, Cancel):
                    self._cancel(message.id)

    def _cancel(self, request: int) -> None:
        if self._prompts and self._prompts[0].id == request:
            self._current, self._spent_ns = None, 0
        self._prompts = deque(one for one in self._prompts if one.id != request)

    def _calibrate(self) -> None:
        """Run a chunk without and one with much before it, so that the first forecast is a measured one.

        The first time of each is left out: it also loads code and gets memory.
        """
        context = self._model.config.context
        if context < 2 * self._tokens:
            chunks = [(0, min(self._tokens, context))]
        else:
            chunks = [(0, self._tokens), (context - self._tokens, context)]
        for begin, end in chunks:
            for warm in (False, True, True):
                run = PromptPrefill(self._model, self._cache, self._table, [0] * end, self._tokens)
                run.begin = begin
                while not run.done and run.begin == begin:
                    place = (run.begin, run.end, run.kind)
                    begin_ns = self._now_ns()
                    run.run()
                    if warm:
                        self._times.took(*place, self._now_ns() - begin_ns)
        if not self._times.known:
            raise BadInput(
                "could not be timed", field="model", value=context, remedy="use a smaller chunk_tokens"
            )
