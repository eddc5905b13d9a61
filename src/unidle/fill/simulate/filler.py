"""What runs in the waits of devices: pieces of prefill as the controller placed them, given up when training comes back early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from unidle.fill.policy.controller import FillController
from unidle.fill.policy.fit import QueuedPrefill
from unidle.fill.policy.forecast import WaitForecast
from unidle.fill.policy.line import NextPiece
from unidle.fill.policy.requests import Decision, PrefillRequest
from unidle.fill.policy.windows import FillWindow
from unidle.fill.simulate.accounts import DeviceAccounts
from unidle.fill.simulate.events import Events
from unidle.fill.simulate.planned import PlannedWaits

AHEAD_NS = 3_000_000_000  # windows are known so far ahead, and for two iterations at least


@dataclass(frozen=True, slots=True)
class YieldRules:
    """What happens to a piece when training needs its device.

    ``gives_way_ns``: the piece is given up, and training waits at most this long (the kernel that runs has to end); None: the
    piece runs to its end.
    """

    gives_way_ns: int | None = 200_000


@dataclass(slots=True)
class _Batch:
    piece: NextPiece
    start_ns: int
    count: int


class BubbleFiller:
    """The host of the waits (:class:`unidle.fill.simulate.training.WaitHost`).

    ``exact``: waits are as planned, so that the controller's windows are kept as they are; else they are corrected by what happens.
    ``served``: called with the pipeline and each prompt whose first token is made. ``gone``: with each that would be late and has not begun.
    """

    def __init__(
        self, controller: FillController, forecast: WaitForecast, planned: PlannedWaits, events: Events,
        accounts: DeviceAccounts, rules: YieldRules, *, exact: bool,
    ) -> None:  # fmt: skip
        self._controller, self._forecast, self._planned = controller, forecast, planned
        self._events, self._accounts, self._rules, self._exact = events, accounts, rules, exact
        self._place = {
            device: (row, stage)
            for row, each in enumerate(controller.pipelines)
            for stage, device in enumerate(each.devices)
        }
        self._limit: dict[int, int] = {}
        self._batch: dict[int, _Batch] = {}
        self._wake: dict[int, int] = {}
        self._by_device: dict[int, list[tuple[int, int]]] = {}
        self._lengths = list[int]()
        self._begun = 0
        self.served: Callable[[int, QueuedPrefill], None] = lambda *_: None
        self.gone: Callable[[PrefillRequest], None] = lambda _: None
        self.discarded_ns = 0
        for each in planned.waits:
            forecast.seed(each.device, each.position, each.offset_ns, each.length_ns)
            self._by_device.setdefault(each.device, []).append((each.position, each.free_bytes))
        self._first = {each.device: each for each in planned.first}

    def begins(self, iteration: int, now_ns: int) -> None:
        """The windows of the iterations ahead, as they are forecast now."""
        if iteration:
            self._lengths = [*self._lengths[-19:], now_ns - self._begun]
        self._begun = now_ns
        period = sum(self._lengths) // len(self._lengths) if self._lengths else self._planned.iteration_ns
        ahead = max(AHEAD_NS // period + 1, 2)
        for device in self._place:
            self._controller.windows(device, self._windows(device, iteration, now_ns, period, ahead))
        if not self._exact:
            self._replan(range(len(self._controller.pipelines)), now_ns)

    def _windows(self, device: int, iteration: int, now_ns: int, period: int, ahead: int) -> list[FillWindow]:
        each = [
            FillWindow(device, offset, offset + length, free)
            for position, free in self._by_device.get(device, ())
            if (length := self._forecast.length_ns(device, position))
            for offset in (self._forecast.offset_ns(device, position),)
        ]
        first = -1 if iteration else 0  # a wait that began in the iteration before goes on
        found = [
            window._replace(
                start_ns=now_ns + k * period + window.start_ns, end_ns=now_ns + k * period + window.end_ns
            )
            for k in range(first, ahead)
            for window in each
        ]
        if not iteration and device in self._first:
            known = self._first[device]
            found.append(FillWindow(device, now_ns, now_ns + known.length_ns, known.free_bytes))
        if self._exact:
            return sorted(each for each in found if each.end_ns > now_ns)
        open_until = self._limit.get(device)
        if open_until is not None:
            found = [each for each in found if each.start_ns >= now_ns]
            found.append(FillWindow(device, now_ns, open_until))
        return _apart(found, now_ns)

    def _replan(self, rows: range | tuple[int, ...], now_ns: int) -> None:
        for row in rows:
            for request in self._controller.replan(row, now_ns):
                if request.deadline_ns is not None and not self._has_begun(row, request):
                    self._controller.cancel(request.number, now_ns)
                    self.gone(request)
            self._wake_all(row)

    def _has_begun(self, row: int, request: PrefillRequest) -> bool:
        running = {batch.piece.item.request.number for batch in self._batch.values()}
        return request.number in running or any(
            each.started for each in self._controller.queue(row) if each.request.number == request.number
        )

    def arrives(self, request: PrefillRequest) -> Decision:
        """Decide about a request, and begin with it where a device waits."""
        decision = self._controller.decide(request, self._events.now_ns)
        for row in range(len(self._controller.pipelines)) if request.priority else self._row_of(decision):
            self._wake_all(row)
        return decision

    @staticmethod
    def _row_of(decision: Decision) -> tuple[int, ...]:
        row: int | None = getattr(decision, "pipeline", None)
        return () if row is None else (row,)

    def _wake_all(self, row: int) -> None:
        for device in self._controller.pipelines[row].devices:
            self._try(device)

    def opened(self, device: int, position: int, now_ns: int) -> None:
        """The device waits from now on."""
        if device not in self._place:
            return
        if self._exact and device in self._first and now_ns == 0:
            length = self._first[device].length_ns
        else:
            length = self._forecast.length_ns(device, position)
        self._limit[device] = now_ns + length
        if not self._exact:
            self._correct(device, now_ns)
        self._try(device)

    def _correct(self, device: int, now_ns: int) -> None:
        """The window that is open now, and those that are still ahead."""
        index = self._controller.index
        limit = self._limit.get(device, 0)
        rest = [
            FillWindow(device, *each)
            for each in zip(index.starts[device], index.ends[device], index.free_bytes[device], strict=True)
            if each[0] > max(limit, now_ns)
        ]
        here = [FillWindow(device, now_ns, limit)] if limit > now_ns else []
        self._controller.windows(device, here + rest)
        self._replan((self._place[device][0],), now_ns)

    def _try(self, device: int) -> None:
        """Run what comes next if it is there and fits."""
        limit, now = self._limit.get(device), self._events.now_ns
        if limit is None or device in self._batch:
            return
        row, stage = self._place[device]
        piece = self._controller.next_piece(row, stage)
        if piece is None:
            return
        if piece.ready_ns > now:
            if self._wake.get(device) != piece.ready_ns:
                self._wake[device] = piece.ready_ns
                self._events.at(piece.ready_ns, partial(self._woken, device, piece.ready_ns))
            return
        count = min(piece.left, (limit - now) // piece.piece_ns)
        if count <= 0:
            return
        if now > self._accounts.marks[device]:
            self._accounts.spend(device, now, "waits")
        batch = self._batch[device] = _Batch(piece, now, count)
        self._events.at(now + count * piece.piece_ns, partial(self._ended, device, batch))

    def _woken(self, device: int, when_ns: int) -> None:
        if self._wake.get(device) == when_ns:
            del self._wake[device]
        self._try(device)

    def _ended(self, device: int, batch: _Batch) -> None:
        if self._batch.get(device) is batch:
            self._enter(device, batch, batch.count, self._events.now_ns)
            self._try(device)

    def _enter(self, device: int, batch: _Batch, count: int, end_ns: int) -> None:
        """So many pieces of a batch were run, the last until ``end_ns``."""
        del self._batch[device]
        if not count:
            return
        row, stage = self._place[device]
        item = batch.piece.item
        self._accounts.spend(device, end_ns, "prefill", ("fill", item.request.number, batch.piece.chunk))
        if self._controller.ran(row, batch.piece, stage, count, end_ns):
            self.served(row, item)
        if stage + 1 < len(self._controller.pipelines[row].devices):
            self._try(self._controller.pipelines[row].devices[stage + 1])

    def closed(self, device: int, position: int, opened_ns: int, now_ns: int) -> int:
        """Training comes back: what runs is given up, or ends first."""
        if device not in self._place:
            return now_ns
        self._limit.pop(device, None)
        begin, batch = now_ns, self._batch.get(device)
        if batch is not None:
            begin = self._stop(device, batch, now_ns)
        if opened_ns or device not in self._first:
            step = (
                self._begun
                if opened_ns >= self._begun
                else self._begun - (self._lengths[-1] if self._lengths else 0)
            )
            self._forecast.observe(device, position, opened_ns - step, now_ns - opened_ns)
        if not self._exact:
            self._correct(device, now_ns)
        return begin

    def _stop(self, device: int, batch: _Batch, now_ns: int) -> int:
        piece = batch.piece
        done, part = divmod(now_ns - batch.start_ns, piece.piece_ns)
        way = self._rules.gives_way_ns
        if part and way is None:
            end = now_ns + piece.piece_ns - part
            self._enter(device, batch, done + 1, end)
            return end
        self._enter(device, batch, done, batch.start_ns + done * piece.piece_ns)
        if not part:
            return now_ns
        begin = now_ns + min(way or 0, piece.piece_ns - part)
        self.discarded_ns += begin - self._accounts.marks[device]
        self._accounts.spend(
            device, begin, "discarded prefill", ("discarded", piece.item.request.number, piece.chunk)
        )
        return begin


def _apart(windows: list[FillWindow], now_ns: int) -> list[FillWindow]:
    """In order; forecasts that overlap are cut where the next one begins."""
    found = list[FillWindow]()
    for each in sorted(windows):
        if each.end_ns <= now_ns:
            continue
        if found and each.start_ns < found[-1].end_ns:
            found[-1] = found[-1]._replace(end_ns=each.start_ns)
            if found[-1].end_ns <= found[-1].start_ns:
                found.pop()
        found.append(each)
    return found
