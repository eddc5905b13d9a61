"""When this rank waits: a board in shared memory that a filler next to it reads. Standard library only.

A rank makes it at its first wait. It is an anonymous file (``memfd``) of two pages, so nothing is left of it when the rank ends,
however it ends. Another process of the same user finds it among the rank's descriptors (:func:`boards_of`). The rank writes a few
words for each wait, about a microsecond, and never waits for a filler. It wakes one that sleeps through a pipe, which the filler finds the same way.
"""

from __future__ import annotations

import mmap
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MEMFD_NAME = "unidle-waits"
MAGIC = 0x556E69646C653031
WAITS_KEPT = 256  # of the latest waits and steps
STEPS_KEPT = 256

# words of 8 bytes; the first part is written by the rank
_MAGIC, _PID, _PIPE, _BEGUN, _POSITION, _STEP, _STEP_NS, _WAITS, _STEPS = range(9)
_ASLEEP, _FILLED, _DISCARDED = range(32, 35)  # by the filler
_RINGS = 64
_WAIT_WORDS, _STEP_WORDS = 4, 2
_STEP_RING = _RINGS + WAITS_KEPT * _WAIT_WORDS
WORDS = _STEP_RING + STEPS_KEPT * _STEP_WORDS
SIZE = -(-WORDS * 8 // mmap.PAGESIZE) * mmap.PAGESIZE


class RankWait:
    """A wait that ended. ``position``: its number in the step. Times are ns: ``begin_ns`` of CLOCK_MONOTONIC."""

    __slots__ = ("begin_ns", "length_ns", "offset_ns", "position")

    def __init__(self, position: int, begin_ns: int, length_ns: int, offset_ns: int) -> None:
        self.position, self.begin_ns, self.length_ns, self.offset_ns = (
            position,
            begin_ns,
            length_ns,
            offset_ns,
        )


class _Counted:
    """What both sides read."""

    _words: memoryview

    @property
    def steps(self) -> int:
        """Steps that were counted."""
        return self._words[_STEPS]

    @property
    def waits(self) -> int:
        """Waits that ended."""
        return self._words[_WAITS]


class WaitBoard(_Counted):
    """The side of the rank. Not for several threads: waits and steps are those of the thread that trains."""

    def __init__(self) -> None:
        fd = os.memfd_create(MEMFD_NAME, os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        self._memory = mmap.mmap(fd, SIZE)
        self._words = memoryview(self._memory).cast("q")
        self._fds: tuple[int, ...] = (fd, *os.pipe())
        os.set_blocking(self._fds[2], False)
        self._depth = self._position = 0
        words = self._words
        words[_PID], words[_PIPE], words[_STEP_NS] = os.getpid(), self._fds[1], time.monotonic_ns()
        words[_MAGIC] = MAGIC
        os.register_at_fork(after_in_child=self._forked)

    def begin(self) -> None:
        """The rank waits from now on. Inside another wait it is part of that one."""
        self._depth += 1
        if self._depth > 1:
            return
        words = self._words
        words[_POSITION] = self._position
        words[_BEGUN] = time.monotonic_ns()
        if words[_ASLEEP]:
            words[_ASLEEP] = 0
            try:
                os.write(self._fds[2], b"\0")
            except OSError:  # full: the filler has been woken already
                pass

    def end(self) -> None:
        """It works again."""
        self._depth -= 1
        words = self._words
        begun = words[_BEGUN]
        if self._depth > 0 or not begun:
            return
        words[_BEGUN] = 0
        now, count = time.monotonic_ns(), words[_WAITS]
        at = _RINGS + count % WAITS_KEPT * _WAIT_WORDS
        words[at], words[at + 1], words[at + 2], words[at + 3] = (
            self._position, begun, now - begun, begun - words[_STEP_NS],
        )  # fmt: skip
        words[_WAITS] = count + 1
        self._position += 1

    def step(self, number: int) -> None:
        """Step ``number`` is complete; positions of waits count from 0 again."""
        words = self._words
        now, count = time.monotonic_ns(), words[_STEPS]
        at = _STEP_RING + count % STEPS_KEPT * _STEP_WORDS
        words[at], words[at + 1] = number, now
        words[_STEP], words[_STEP_NS], words[_STEPS] = number, now, count + 1
        self._position = 0

    def filled_ns(self) -> tuple[int, int]:
        """What a filler has written: nanoseconds of waits with useful work, and with work that was lost. Both only grow."""
        return max(self._words[_FILLED], 0), max(self._words[_DISCARDED], 0)

    def waited_ns(self) -> int:
        """How long the current wait has lasted; 0 outside."""
        begun = self._words[_BEGUN]
        return time.monotonic_ns() - begun if begun else 0

    def close(self) -> None:
        """Fillers see that the rank is gone."""
        self._words.release()
        self._memory.close()
        fds, self._fds = (
            self._fds,
            (),
        )  # their numbers may be those of other files from now on, also in a child
        for fd in fds:
            os.close(fd)

    def _forked(self) -> None:
        """A child (a data loader's worker) keeps nothing of it, and writes into memory of its own."""
        self._words = memoryview(bytearray(SIZE)).cast("q")
        fds, self._fds = self._fds, ()
        for fd in fds:
            try:
                os.close(fd)
            except OSError:
                pass


class BoardReader(_Counted):
    """The side of a filler: process ``pid``, whose descriptor ``fd`` is the board. Errors: OSError where it is gone or not permitted, ValueError where it is no board."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(opened).st_size < WORDS * 8:
                raise ValueError("no board of waits")
            self.inode = os.fstat(opened).st_ino
            self._memory = mmap.mmap(opened, SIZE)
        finally:
            os.close(opened)
        self._words = memoryview(self._memory).cast("q")
        if self._words[_MAGIC] != MAGIC or self._words[_PID] != pid:
            raise ValueError("no board of waits")
        self.pipe = os.open(
            f"/proc/{pid}/fd/{self._words[_PIPE]}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )

    @property
    def waiting_since_ns(self) -> int:
        """When the current wait began; 0 while the rank works."""
        return self._words[_BEGUN]

    @property
    def position(self) -> int:
        """Number of the current wait in its step."""
        return self._words[_POSITION]

    def waits_from(self, count: int) -> Sequence[RankWait]:
        """Waits that ended since there were ``count`` of them; of many the latest."""
        words, now = self._words, self._words[_WAITS]
        found = []
        for k in range(max(count, now - WAITS_KEPT + 1), now):
            at = _RINGS + k % WAITS_KEPT * _WAIT_WORDS
            found.append(RankWait(words[at], words[at + 1], words[at + 2], words[at + 3]))
        return found

    def steps_from(self, count: int) -> list[tuple[int, int]]:
        """Number and end of each step since there were ``count`` of them; of many the latest."""
        words, now = self._words, self._words[_STEPS]
        first = max(count, now - STEPS_KEPT + 1)
        places = (_STEP_RING + k % STEPS_KEPT * _STEP_WORDS for k in range(first, now))
        return [(words[at], words[at + 1]) for at in places]

    def sleep(self) -> None:
        """From now on a wait writes to :attr:`pipe`. Look at :attr:`waiting_since_ns` again after it."""
        self._words[_ASLEEP] = 1

    def account(self, filled_ns: int, discarded_ns: int) -> None:
        """Add to what the rank reports as filled."""
        self._words[_FILLED] += filled_ns
        self._words[_DISCARDED] += discarded_ns

    def close(self) -> None:
        self._words.release()
        self._memory.close()
        os.close(self.pipe)


def boards_of(pid: int) -> Iterator[int]:
    """Descriptors of ``pid`` that may be boards. Nothing where this user may not list them."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith(f"/memfd:{MEMFD_NAME}"):
            yield int(name)


_own: WaitBoard | None = None
_failed = False


def board() -> WaitBoard | None:
    """The board of this process, made when it is first needed; None where it cannot be made."""
    global _own, _failed
    if _own is None and not _failed:
        try:
            _own = WaitBoard()
        except Exception:  # an old kernel, no descriptor left: training does not depend on it
            _failed = True
    return _own


def made() -> WaitBoard | None:
    """The board if there is one."""
    return _own
