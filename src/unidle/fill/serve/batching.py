"""What a worker does next: which requests have blocks, whose chunk is prefilled, which sequences are decoded. Pure.

- Requests begin in the order in which they arrived. One that does not fit waits, and so do those behind it: none is overtaken.
- A request gets all the blocks that it can ever need when it begins, so that nothing that runs is stopped for lack of memory.
- Chunks and steps of decoding alternate while there are both: a long prompt delays each token of others by one chunk at most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from unidle.fill.serve.kv.pool import BlockPool, blocks_for


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one request. ``samples``: sequences that continue the same prompt; ``longest``: most tokens of prompt and one answer."""

    prompt: int
    longest: int
    samples: int = 1


@dataclass(slots=True)
class Begun:
    """A request with its blocks: a table for each sample. ``live``: samples that are not complete; ``decoding``: its prompt is prefilled."""

    id: int
    sizes: Sizes
    tables: list[list[int]]
    live: set[int] = field(default_factory=set)
    decoding: bool = False


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Prefill the next chunk of this request."""

    request: Begun


@dataclass(frozen=True, slots=True)
class Decode:
    """Compute the next token of each of these: request and sample."""

    rows: list[tuple[Begun, int]]


NOTHING: Final = None


class Batcher:
    """The requests of one worker. ``batch``: most sequences that are begun at a time."""

    def __init__(self, pool: BlockPool, block_tokens: int, batch: int) -> None:
        self.pool = pool
        self.batch = batch
        self._block_tokens = block_tokens
        self._waiting = deque[tuple[int, Sizes]]()
        self._begun = dict[int, Begun]()
        self._chunk_last = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that are begun and not complete."""
        return sum(len(one.live) for one in self._begun.values())

    def blocks_of(self, sizes: Sizes) -> int:
        """Blocks of each sample."""
        return blocks_for(sizes.longest, self._block_tokens)

    def fits_ever(self, sizes: Sizes) -> bool:
        """It fits if nothing else runs."""
        return sizes.samples <= self.batch and self.blocks_of(sizes) * sizes.samples <= self.pool.blocks

    def add(self, request: int, sizes: Sizes) -> None:
        """Errors: ValueError for a request that can never fit, or is known."""
        if not self.fits_ever(sizes) or request in self._begun:
            raise ValueError(f"request {request} of {sizes} cannot be taken")
        self._waiting.append((request, sizes))

    def begin(self) -> list[Begun]:
        """Give blocks to those that wait and fit, in order; they are to be prefilled from now on."""
        started = []
        running = self.running
        while self._waiting:
            request, sizes = self._waiting[0]
            each = self.blocks_of(sizes)
            if running + sizes.samples > self.batch:
                break
            blocks = self.pool.take(each * sizes.samples)
            if blocks is None:
                break
            self._waiting.popleft()
            tables = [blocks[at : at + each] for at in range(0, len(blocks), each)]
            begun = Begun(request, sizes, tables, set(range(sizes.samples)))
            self._begun[request] = begun
            running += sizes.samples
            started.append(begun)
        return started

    def next_step(self) -> PromptChunk | Decode | None:
        """The next step; None if there is nothing to do."""
        prompts = next((one for one in self._begun.values() if not one.decoding), None)
        rows = [(one, sample) for one in self._begun.values() if one.decoding for sample in sorted(one.live)]
        if prompts is not None and not (rows and self._chunk_last):
            self._chunk_last = True
            return PromptChunk(prompts)
        self._chunk_last = False
        return Decode(rows) if rows else NOTHING

    def prefilled(self, request: int) -> None:
        """Its prompt is in the cache: from now on it is decoded."""
        self._begun[request].decoding = True

    def ended(self, request: int, sample: int) -> None:
        """A sample is complete: its blocks are free. The request ends with its last one."""
        begun = self._begun[request]
        begun.live.remove(sample)
        self.pool.give(begun.tables[sample])
        begun.tables[sample] = []
        if not begun.live:
            del self._begun[request]

    def cancel_sample(self, request: int, sample: int) -> bool:
        """End one sample of a request that has others; True if nothing is left to do, False if the request is to be cancelled."""
        begun = self._begun.get(request)
        if begun is None or begun.live == {sample}:
            return False
        if sample in begun.live:
            self.ended(request, sample)
        return True

    def cancel(self, request: int) -> None:
        """Forget a request, wherever it is; nothing happens for one that is unknown."""
        if request in self._begun:
            for sample in list(self._begun[request].live):
                self.ended(request, sample)
            return
        self._waiting = deque(one for one in self._waiting if one[0] != request)
