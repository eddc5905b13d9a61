"""What the hub has not got of one rank: its marks from an ordinal on, read again from the journal."""

from __future__ import annotations

from unidle import wire
from unidle.engine.local.ranks.journal_tail import JournalTail
from unidle.engine.local.ranks.mark_forms import RawMarks
from unidle.engine.local.ranks.rank_watch import RankWatch
from unidle.engine.local.ranks.rundir import JOURNAL

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FRAME_BYTES = 128 * 1024  # of the marks in one frame, unless one alone has more
_PLAIN = {"k": "", "t": 0}
_NEEDED = (b'"spawn"', b'"exit"', b'"lost"', b'"saved"')


class Glances(RawMarks):
    """Of marks only what the box itself needs, the spawn, the end and saves: the others are decoded where they are sent.

    ``under_way``: one showed a step.
    """

    def __init__(self) -> None:
        self.under_way = False

    def decode(self, line: bytes) -> Any:
        if any(word in line for word in _NEEDED):
            return super().decode(line)
        self.under_way = self.under_way or b'"step"' in line
        return _PLAIN


class MarkFeed:
    """Marks of a rank from ordinal ``known`` on, each once and in order. Its end always comes: ``known`` is of a hub that has none.

    After a power cut the journal may have fewer lines than the hub; an end that was added then gets a number after ``known``.
    """

    def __init__(self, watch: RankWatch, known: int) -> None:
        self._watch = watch
        self._known = known
        self._tail = JournalTail(f"{watch.directory}/{JOURNAL}", RawMarks(), known)
        self._sent_unwritten = False

    @property
    def behind(self) -> bool:
        """Whether more is there than one read took."""
        return self._tail.behind

    def read(self) -> Iterator[tuple[int, list[bytes]]]:
        """Ordinal of the first mark and the JSON of the marks, in parts that fit into a frame."""
        first, marks = self._tail.read()
        yield from _parts(first, marks)
        end, self._tail.known_end = self._tail.known_end, None
        if end is not None:  # a power cut took lines before it, so its number is another mark's in the log
            yield from _parts(self._tail.next, (end,))
        watch = self._watch
        if watch.unwritten is not None and not self._sent_unwritten and not self._tail.behind:
            self._sent_unwritten = True
            yield from _parts(max(watch.marks - 1, self._known), (watch.unwritten,))

    def close(self) -> None:
        self._tail.close()


def _parts(first: int, marks: tuple[Any, ...]) -> Iterator[tuple[int, list[bytes]]]:
    part: list[bytes] = []
    size = 0
    for mark in marks:
        text = wire.compact(mark)
        if part and size + len(text) > FRAME_BYTES:
            yield first, part
            first, part, size = first + len(part), [], 0
        part.append(text)
        size += len(text)
    if part:
        yield first, part
