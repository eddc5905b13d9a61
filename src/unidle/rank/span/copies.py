"""Files of checkpoints between ranks that share no storage: block by block over a channel of their own, each block checked."""

from __future__ import annotations

import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from unidle.checkpoint.layout import CHUNK_BYTES, Shard
from unidle.rank.wan import Channel, WanError

_DEPTH: Final = 8  # blocks on their way at a time


class Courier:
    """Carries files to and from other devices, by their number in the plan. ``channel`` gives the one to a device."""

    def __init__(self, channel: Callable[[int], Channel]) -> None:
        self._channel = channel

    def exchange(
        self,
        directory: str,
        gives: Iterable[tuple[int, Sequence[Shard]]],
        gets: Iterable[tuple[int, Sequence[Shard]]],
    ) -> str:
        """Give files of a directory to devices, and get files from devices into it, durably; why not, where that fails."""
        problems: list[str] = []

        def give(to: int, shards: Sequence[Shard]) -> None:
            try:
                for shard in shards:
                    self._give(self._channel(to), os.path.join(directory, shard.name), shard)
            except (OSError, WanError) as error:
                problems.append(f"{directory}: {error}")
                self._channel(to).close(0)  # nobody may wait for the rest

        threads = [threading.Thread(target=give, args=each, daemon=True) for each in gives]
        for thread in threads:
            thread.start()
        for source, shards in gets:
            for shard in shards:  # all of them, also after a problem: who gives waits for that
                try:
                    self._get(self._channel(source), os.path.join(directory, shard.name), shard)
                except (OSError, WanError) as error:
                    problems.append(f"{directory}: {error}")
        for thread in threads:
            thread.join()
        return problems[0] if problems else ""

    @staticmethod
    def _give(channel: Channel, path: str, shard: Shard) -> None:
        going: deque[Future[int]] = deque()
        with open(path, "rb") as file:
            for _ in shard.crcs:
                going.append(channel.send(shard.name, file.read(CHUNK_BYTES)))
                if len(going) > _DEPTH:
                    going.popleft().result()
        for future in going:
            future.result()

    @staticmethod
    def _get(channel: Channel, path: str, shard: Shard) -> None:
        coming: deque[Future[memoryview]] = deque()
        left = shard.size_bytes
        problem: OSError | None = None
        with open(path, "wb") as file:
            for k, crc in enumerate(shard.crcs):
                while len(coming) < min(_DEPTH, len(shard.crcs) - k):
                    size = min(CHUNK_BYTES, left)
                    left -= size
                    coming.append(channel.recv(shard.name, bytearray(size)))
                data = coming.popleft().result()
                if zlib.crc32(data) != crc and problem is None:
                    problem = OSError(0, f"{shard.name} was changed on its way")
                try:
                    if problem is None:
                        file.write(data)
                except OSError as error:  # the rest is taken all the same: the one who sends waits for that
                    problem = error
            if problem is not None:
                raise problem
            file.flush()
            os.fsync(file.fileno())
