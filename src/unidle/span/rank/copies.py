"""Files of checkpoints between ranks that share no storage: block by block over a channel of their own, each block checked."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from unidle.checkpoint.layout import CHUNK_BYTES, Shard
from unidle.span.wan import Channel, WanError

_DEPTH: Final = 8  # blocks on their way at a time


class Courier:
    """Carries files to and from other devices, by their number in the plan. ``channel`` gives the one to a device."""

    def __init__(self, channel: Callable[[int], Channel]) -> None:
        self._channel = channel

    def exchange(
        self,
        directory: str,
        gives: Iterable[tuple[int, Sequence[Shard]]],
        gets: Sequence[tuple[int, Sequence[Shard]]],
    ) -> tuple[str, str]:
        """Give files of a directory to devices, and get files from devices into it, durably.

        Returns the errors of this rank's disk and of a link; empty on success.
        """
        disks: list[str] = []
        links: list[str] = []

        def give(to: int, shards: Sequence[Shard]) -> None:
            try:
                for shard in shards:
                    self._give(self._channel(to), os.path.join(directory, shard.name), shard)
            except WanError as error:
                links.append(str(error))
            except OSError as error:
                disks.append(f"{directory}: {error.strerror}")
                self._channel(to).close(0)  # nobody may wait for the rest

        threads = [threading.Thread(target=give, args=each, daemon=True) for each in gives]
        for thread in threads:
            thread.start()
        with contextlib.suppress(OSError):  # files say it then
            if gets:
                os.makedirs(directory, exist_ok=True)
        for source, shards in gets:
            for shard in shards:  # all of them, also after a problem: who gives waits for that
                try:
                    self._get(self._channel(source), os.path.join(directory, shard.name), shard)
                except WanError as error:
                    links.append(str(error))
                except OSError as error:
                    disks.append(f"{directory}: {error.strerror}")
        for thread in threads:
            thread.join()
        return (disks or [""])[0], (links or [""])[0]

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
        """All blocks are taken, also after the disk is full: who gives waits for that."""
        coming: deque[Future[memoryview]] = deque()
        left, problem, fd = shard.size_bytes, None, -1
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as error:
            problem = error
        try:
            for k, crc in enumerate(shard.crcs):
                while len(coming) < min(_DEPTH, len(shard.crcs) - k):
                    size = min(CHUNK_BYTES, left)
                    left -= size
                    coming.append(channel.recv(shard.name, bytearray(size)))
                data = coming.popleft().result()
                try:
                    if problem is None and zlib.crc32(data) != crc:
                        raise OSError(errno.EIO, f"{shard.name} is not what was written")
                    while problem is None and len(data):
                        data = data[os.write(fd, data) :]
                except OSError as error:
                    problem = error
            if problem is not None:
                raise problem
            os.fsync(fd)
        finally:
            if fd >= 0:
                os.close(fd)
