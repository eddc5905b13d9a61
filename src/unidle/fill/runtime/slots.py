"""Lets one filler run in the waits of one rank, piece by piece, and counts what becomes of them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from unidle.fill.policy.forecast import SHORT_HOLD_NS, ForecastRules, WaitForecast, quantile_for
from unidle.fill.runtime.shared_counters import FINISHED, READY, SharedCounters
from unidle.fill.sliced import FillPiece, Room, Sliced
from unidle.rank.waits import RankWait

_LOOK_S: Final = 0.05  # while the rank works; a wait wakes at once
_NOTHING_S: Final = 0.001
_ENDS_S: Final = 0.0005


class Board(Protocol):
    """When the rank waits: :class:`unidle.rank.waits.BoardReader`, or :class:`AlwaysOpen`."""

    @property
    def pipe(self) -> int: ...
    @property
    def waiting_since_ns(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def waits(self) -> int: ...
    def waits_from(self, count: int, /) -> Sequence[RankWait]: ...
    def sleep(self) -> None: ...
    def account(self, filled_ns: int, discarded_ns: int) -> None: ...


class AlwaysOpen:
    """For a rank that shows no waits: the kernel alone decides, because it gives the filler what training does not use."""

    def __init__(self) -> None:
        self.pipe, self._writes = os.pipe()
        self.position = self.waits = 0
        self.waiting_since_ns = time.monotonic_ns()

    def waits_from(self, _count: int, /) -> Sequence[RankWait]:
        return []

    def sleep(self) -> None:
        pass

    def account(self, filled_ns: int, discarded_ns: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class SlotRules:
    """``piece_ns``: the longest piece. ``memory_bytes``: what the filler may hold. ``paced``: a piece takes its stated time of waits."""

    piece_ns: int
    memory_bytes: int
    paced: bool = False


class Slots:
    """Drives one filler. ``alive``: whether training still runs."""

    def __init__(self, filler: Sliced, board: Board, counters: SharedCounters, rules: SlotRules) -> None:
        self._filler, self._board, self._desk, self._rules = filler, board, counters, rules
        self._always = isinstance(board, AlwaysOpen)
        self.forecast = WaitForecast(ForecastRules(quantile_for(rules.piece_ns)))
        self._seen = board.waits
        self._debt = 0  # of work that was lost after it had counted as useful
        self._position, self._forecast_ns = -1, 0
        self._over_ns = (
            0  # by how much the last paced piece took longer than stated: the next one is so much shorter
        )
        self._begun_in = 0  # the wait of the last piece, by its begin
        self._paced_ns = 0  # when the last paced piece ended, if nothing was between

    def run(self) -> None:
        """Until the filler is finished, the supervisor ends it, or training is gone."""
        self._desk["state"] = READY
        over = self._filler.finished
        while not self._desk["stop"] and not over:
            self._learn()
            since = self._board.waiting_since_ns
            if not since or not self._desk["open"]:
                if not self._sleep():
                    break
            else:
                self._desk["piece_ns"] = 0
                self._desk["piece_begun_ns"] = time.monotonic_ns()
                self._turn(since)
                over = self._filler.finished
                self._desk["piece_begun_ns"] = 0
        if over:
            self._desk["state"] = FINISHED
        else:
            self._lose(self._filler.give_up())
        self._learn()

    def _sleep(self) -> bool:
        """Until the rank waits, or for a moment; False where it is gone."""
        self._paced_ns = 0
        self._board.sleep()
        if self._board.waiting_since_ns and self._desk["open"]:
            return True
        ready, _, _ = select.select([self._board.pipe], [], [], _LOOK_S)
        return not ready or bool(os.read(self._board.pipe, 4096))

    def _learn(self) -> None:
        """Enter waits that ended."""
        if self._board.waits == self._seen:
            return
        counters, error = self._desk, self.forecast.error
        for wait in self._board.waits_from(self._seen):
            self.forecast.observe(0, wait.position, wait.offset_ns, wait.length_ns)
            if counters["open"]:
                counters.add("waited_ns", wait.length_ns)
        self._seen, self._position = self._board.waits, -1
        counters["waits"], counters["early"] = error.waits, error.early
        counters["early_ns"], counters["unused_ns"] = error.early_ns, error.unused_ns

    def _room_ns(self, since: int) -> int:
        """How long a piece may be: up to the forecast end of the wait, and always so short that the kernel's giving way is enough."""
        if self._always:
            return self._rules.piece_ns
        if self._position != self._board.position:
            self._position = self._board.position
            self._forecast_ns = self.forecast.length_ns(0, self._position)
        left = since + self._forecast_ns - time.monotonic_ns()
        return min(self._rules.piece_ns, max(left, SHORT_HOLD_NS))

    def _turn(self, since: int) -> None:
        room = Room(self._room_ns(since), self._rules.memory_bytes)
        piece = self._filler.next_piece(room)
        if piece is None:
            self._desk["piece_begun_ns"] = self._paced_ns = 0
            time.sleep(_NOTHING_S)
        elif piece.length_ns > room.ns or piece.memory_bytes > room.memory_bytes:
            self._desk["piece_begun_ns"] = self._paced_ns = 0
            self._desk.add("skipped", 1)
            self._until_end(since)
        else:
            self._note_begin(since)
            self._run(piece)

    def _note_begin(self, since: int) -> None:
        """How long the wait had lasted before its first piece."""
        if since != self._begun_in and not self._always:
            self._begun_in = since
            self._desk.add("late_ns", time.monotonic_ns() - since)

    def _until_end(self, since: int) -> None:
        """The rest of this wait holds no piece."""
        while self._board.waiting_since_ns == since and not self._always and not self._desk["stop"]:
            time.sleep(_ENDS_S)
        if self._always:
            time.sleep(_LOOK_S)

    def _run(self, piece: FillPiece) -> None:
        counters = self._desk
        begun, used, count = time.monotonic_ns(), time.process_time_ns(), self._board.waits
        counters["piece_ns"] = piece.length_ns
        counters["piece_begun_ns"] = begun
        self._filler.run()
        used = time.process_time_ns() - used
        if self._rules.paced:
            counters["pacing"] = 1
            counters.add("delayed_ns", max(self._within(begun, count) - piece.length_ns, 0))
            filled = self._pace(self._continued(begun), count, piece.length_ns)
            self._paced_ns = time.monotonic_ns()
            counters["pacing"] = 0
        else:
            inside = used if self._always else self._within(begun, count)
            filled = min(used, inside)
            counters.add("delayed_ns", inside - filled)
        counters["piece_begun_ns"] = 0
        counters.ran(begun, time.monotonic_ns(), piece.of)
        counters.add("pieces", 1)
        counters.add("units", piece.units)
        counters["unfinished_ns"] = 0 if piece.units else counters["unfinished_ns"] + filled
        lost = min(self._debt, filled)
        self._debt -= lost
        counters.add("filled_ns", filled - lost)
        counters.add("discarded_ns", lost)
        self._board.account(filled - lost, lost)

    def _continued(self, begun: int) -> int:
        """When a paced piece began: in the same wait as the one before it, at the end of that one. A device has no pause between them."""
        since = self._board.waiting_since_ns
        return self._paced_ns if since and since <= self._paced_ns else begun

    def _within(self, begun: int, count: int) -> int:
        """How much of the time since ``begun`` the rank waited; ``count``: its waits that had ended then."""
        now, since = time.monotonic_ns(), self._board.waiting_since_ns
        total = max(now - max(since, begun), 0) if since else 0
        for wait in self._board.waits_from(count):
            total += max(wait.begin_ns + wait.length_ns - max(wait.begin_ns, begun), 0)
        return total

    def _pace(self, begun: int, count: int, length_ns: int) -> int:
        """Until the piece has had its stated time of waits, as on a device that computes it in that time; how much it had."""
        wanted = max(length_ns - self._over_ns, 0)
        while (left := wanted - self._within(begun, count)) > 0 and not self._desk["stop"]:
            if self._board.waiting_since_ns:
                time.sleep(left / 1e9)
            elif not self._sleep():
                break
        had = self._within(begun, count) + self._over_ns
        self._over_ns = max(had - length_ns, 0)
        return min(had, length_ns)

    def _lose(self, lost_ns: int) -> None:
        """Work that had counted is lost: what follows counts as lost until that is made up for."""
        self._debt += max(lost_ns, 0)
