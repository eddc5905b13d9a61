"""What a job prints, shown while it runs: by a thread of its own, so that neither job nor controller waits for a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, TextIO

from unidle.api.lines import RankLines
from unidle.cli.lines import for_terminal
from unidle.cli.live import Live
from unidle.engine.local.logs import LogReader
from unidle.engine.local.ranks import rundir
from unidle.events import types as ev
from unidle.words import counted

_LOOK_EVERY_S: Final = 0.1
_CATCH_UP_S: Final = 0.5
_BEHIND_BYTES: Final = 1 << 20  # so far behind a terminal passes over lines
_SHOWN_BYTES: Final = 8192  # of what it then shows at a time
_FLOOD_S: Final = 0.5
_COUNT_EVERY_S: Final = 5.0


class JobOutput:
    """Copies what the chosen ranks print to the stream ``to``, over restarts, until :meth:`finish`.

    A terminal gets text that cannot drive it, and passes over lines of a flood; anything else gets every byte that is
    kept long enough to be read. Lines have their rank in front where several ranks are chosen.
    """

    def __init__(self, root: Path, job: str, ranks: Collection[int], live: Live, to: TextIO) -> None:
        self._root, self._job, self._ranks, self._live, self._to = root, job, ranks, live, to
        self._terminal = to.isatty()
        self._readers: dict[int, tuple[LogReader, RankLines]] = {}
        self._next: list[tuple[int, int]] = []  # attempts to follow after the present one, with their ranks
        self._ended = False  # the present attempt
        self._wake, self._caught_up = threading.Event(), threading.Event()
        self._asked = self._finishing = self._stuck = False
        self._passed_over, self._unknown, self._counted_s = 0, False, 0.0
        self._unfinished = False  # the last byte was not the end of a line
        self._thread: threading.Thread | None = None

    def heard(self, event: ev.Event) -> None:
        """An attempt began or ended, or a line about the job follows: what was printed before comes first."""
        if isinstance(event, ev.AttemptPlaced) and event.job == self._job:
            self._catch_up()
            self._next.append((event.attempt, len(event.places)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()
        elif getattr(event, "job", None) == self._job:
            self._catch_up()

    def finish(self) -> None:
        """Return when all was shown that the job printed; an interrupt ends the wait."""
        if self._thread is None:
            return
        self._finishing = True
        self._wake.set()
        while self._thread.is_alive():
            self._thread.join(0.2)

    def _catch_up(self) -> None:
        """Wait a little until all that is printed by now is shown; not again for one who does not read."""
        if self._thread is None or self._stuck or not self._thread.is_alive():
            return
        self._caught_up.clear()
        self._asked = True
        self._wake.set()
        self._stuck = not self._caught_up.wait(_CATCH_UP_S)

    # -- the thread

    def _run(self) -> None:
        try:
            while self._look():
                self._wake.wait(_LOOK_EVERY_S)
                self._wake.clear()
        except (OSError, ValueError) as error:  # a reader that went away, a full disk
            if not isinstance(error, BrokenPipeError):
                self._live.hint(f"output is not shown any more: {error}")
        finally:
            self._caught_up.set()
            for reader, _ in self._readers.values():
                reader.close()

    def _look(self) -> bool:
        """Show what is new; False when that was all."""
        asked, finishing = self._asked, self._finishing
        while self._next:
            following, self._next = self._next[0], self._next[1:]
            self._show_all()
            self._end_attempt()
            self._begin_attempt(*following)
        self._show_all()
        if finishing:
            self._end_attempt()
            self._say_passed_over(at_once=True)
            return False
        if asked:
            self._asked, self._stuck = False, False
            self._caught_up.set()
        return True

    def _begin_attempt(self, attempt: int, ranks: int) -> None:
        several = len(self._ranks) > 1
        for rank in sorted(rank for rank in self._ranks if rank < ranks):
            reader = LogReader(rundir.rank_dir(self._root, self._job, attempt, rank))
            self._readers[rank] = reader, RankLines(b"[%d] " % rank if several else b"", bars=self._terminal)

    def _end_attempt(self) -> None:
        for reader, lines in self._readers.values():
            self._write(lines.rest(), lines)
            self._count(reader)
            reader.close()
        self._readers.clear()
        if self._unfinished:
            self._copy(b"\n")

    def _show_all(self) -> None:
        """Until nothing is new."""
        more = True
        while more:
            more = False
            for reader, lines in self._readers.values():
                more = self._show(reader, lines) or more
            if self._terminal:
                self._say_passed_over()

    def _show(self, reader: LogReader, lines: RankLines) -> bool:
        if self._terminal and reader.unread_bytes() > _BEHIND_BYTES:
            skipped = reader.skip_to_last(_SHOWN_BYTES)
            self._passed_over += skipped or 0
            self._unknown = self._unknown or skipped is None
            self._write(lines.rest(), lines)
            time.sleep(0 if self._finishing else _FLOOD_S)
        data = reader.read()
        self._count(reader)
        if not data:
            return False
        if self._terminal or lines.prefix:
            self._write(lines.feed(data), lines)
        else:
            self._copy(data)
        return True

    def _write(self, whole: list[bytes], lines: RankLines) -> None:
        if self._terminal:
            shown = [for_terminal(line) + "\n" for line in whole]
            self._live.lines(self._to, "".join(shown), for_terminal(lines.open_line()).strip())
        elif whole:
            self._copy(b"".join(line + b"\n" for line in whole))

    def _copy(self, data: bytes) -> None:
        self._unfinished = not data.endswith(b"\n")
        self._to.buffer.write(data)
        self._to.buffer.flush()

    def _count(self, reader: LogReader) -> None:
        """Take over what rotation dropped before it could be shown."""
        self._passed_over += reader.lost_lines
        reader.lost_lines = 0
        if not self._terminal:
            self._say_passed_over()

    def _say_passed_over(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not (self._passed_over or self._unknown) or (
            now - self._counted_s < _COUNT_EVERY_S and not at_once
        ):
            return
        many = counted(self._passed_over, "line") if self._passed_over else "some lines"
        self._live.hint(
            f"{many} not shown: they came too fast (`unidle logs {self._job}` prints what is kept)"
        )
        self._passed_over, self._unknown, self._counted_s = 0, False, now
