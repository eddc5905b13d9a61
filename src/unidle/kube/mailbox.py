"""What threads pass to the control loop: a queue, and a descriptor that is readable while something waits in it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Many threads put, one takes. Errors: OSError if no file descriptor is available."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._items: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[T]) -> None:
        """Add ``items``, which follow each other in the queue where one thread puts."""
        self._items.extend(items)
        if self._items and self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def take(self) -> list[T]:
        """All that wait, the oldest first. Never blocks."""
        if self.fd >= 0:
            try:
                os.eventfd_read(self.fd)
            except BlockingIOError:
                if not self._items:
                    return []
        # what is put after the read rings again
        return [self._items.popleft() for _ in range(len(self._items))]

    def close(self) -> None:
        """After the threads that put have ended."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
