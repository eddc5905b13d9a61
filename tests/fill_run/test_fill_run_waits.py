"""What a rank shows of its waits, as another process reads it; and how a filler uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fill_run.running import HERE, steps_of, training
from ports import block
from unidle.fill.runtime import slots
from unidle.fill.runtime.shared_counters import FINISHED, SharedCounters
from unidle.fill.runtime.slots import SlotRules, Slots
from unidle.fill.sliced import FillPiece, Room
from unidle.rank.waits import WAITS_KEPT, BoardReader, RankWait, WaitBoard, boards_of
from waiting import wait_until


def read(board: WaitBoard) -> BoardReader:
    for fd in boards_of(os.getpid()):
        reader = BoardReader(os.getpid(), fd)
        if reader.waits == 0 and reader.steps == board.steps:
            return reader
        reader.close()
    raise AssertionError("no board")


def test_a_fork_after_the_end_of_a_board_closes_no_file_of_others() -> None:
    WaitBoard().close()
    fds = [*os.pipe(), *os.pipe()]  # they get the numbers that the board had
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for fd in fds:
                os.fstat(fd)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    for fd in fds:
        os.close(fd)
    assert status == 0


def test_waits_are_numbered_in_their_step() -> None:
    board = WaitBoard()
    reader = read(board)
    for step in (1, 2):
        for _ in range(3):
            board.begin()
            assert reader.waiting_since_ns > 0
            board.end()
            assert reader.waiting_since_ns == 0
        board.step(step)
    found = reader.waits_from(0)
    assert [wait.position for wait in found] == [0, 1, 2, 0, 1, 2]
    assert all(wait.length_ns >= 0 and wait.offset_ns >= 0 for wait in found)
    assert [number for number, _ in reader.steps_from(0)] == [1, 2]
    reader.close()
    board.close()


def test_a_wait_inside_another_one_is_part_of_it() -> None:
    board = WaitBoard()
    reader = read(board)
    board.begin()
    board.begin()
    board.end()
    assert reader.waiting_since_ns
    board.end()
    assert reader.waits == 1
    reader.close()
    board.close()


def test_a_reader_that_was_away_gets_the_latest_waits() -> None:
    board = WaitBoard()
    reader = read(board)
    for _ in range(3 * WAITS_KEPT):
        board.begin()
        board.end()
    found = reader.waits_from(0)
    assert len(found) == WAITS_KEPT - 1
    assert found[-1].position == 3 * WAITS_KEPT - 1
    reader.close()
    board.close()


def test_a_wait_wakes_a_reader_that_sleeps() -> None:
    board = WaitBoard()
    reader = read(board)
    board.begin()
    board.end()
    reader.sleep()
    board.begin()
    assert os.read(reader.pipe, 10) == b"\0"
    board.end()
    board.begin()  # the reader does not sleep: nothing is written
    try:
        os.read(reader.pipe, 10)
        raise AssertionError("it was woken")
    except BlockingIOError:
        pass
    reader.close()
    board.close()


def test_a_rank_shows_its_waits_to_another_process_until_it_ends() -> None:
    with training() as (process, rank):
        assert rank.pid == process.pid
        wait_until(lambda: steps_of(rank) > 2)
        assert rank.board is not None
        reader = BoardReader(rank.pid, rank.board)
        process.kill()
        process.wait()

        def gone() -> bool:
            try:
                return os.read(reader.pipe, 100) == b""
            except BlockingIOError:
                return False

        wait_until(gone)
        reader.close()


def test_a_child_of_a_rank_is_no_rank(tmp_path: Path) -> None:
    program = """
import os, time
import unidle.rank as rank
with rank.waiting():
    pass
rank.step()
if os.fork() == 0:
    with rank.waiting():
        rank.step()
    os._exit(0)
os.wait()
from unidle.rank.waits import made
print(made().steps)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == "1\n"


def test_receives_of_torch_distributed_show_as_waits() -> None:
    port = str(block())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "pair.py"), "5"], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(number), "WORLD_SIZE": "2"},
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        found = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert found == ["5 20.0\n", "5 0.0\n"]  # a send is waited for, too


class Clocked:
    """A board whose waits the test sets. The rank of it is gone after the first, unless it ``lives``."""

    def __init__(self, waits: list[tuple[int, int]], *, lives: bool = False) -> None:
        self.pipe, self._writes = os.pipe()
        self.position, self.entered = 0, [0, 0]
        if not lives:
            self.leave()
        now = time.monotonic_ns()
        self._waits = [(now + begin, now + end) for begin, end in waits]

    def leave(self) -> None:
        os.close(self._writes)
        self._writes = -1

    def close(self) -> None:
        os.close(self.pipe)
        if self._writes >= 0:
            self.leave()

    @property
    def waiting_since_ns(self) -> int:
        now = time.monotonic_ns()
        return next((begin for begin, end in self._waits if begin <= now < end), 0)

    @property
    def waits(self) -> int:
        return sum(end <= time.monotonic_ns() for _, end in self._waits)

    def waits_from(self, count: int) -> list[RankWait]:
        return [RankWait(0, begin, end - begin, begin) for begin, end in self._waits[count : self.waits]]

    def sleep(self) -> None:
        pass

    def account(self, filled_ns: int, discarded_ns: int) -> None:
        self.entered[0] += filled_ns
        self.entered[1] += discarded_ns


class Pieces:
    """Instant pieces of a stated length; finished after ``count``."""

    def __init__(self, length_ns: int, count: int) -> None:
        self.length_ns, self.count, self.ran = length_ns, count, list[int]()

    @property
    def finished(self) -> bool:
        return len(self.ran) >= self.count

    def next_piece(self, room: Room) -> FillPiece | None:
        return FillPiece(self.length_ns, 10, 1)

    def run(self) -> None:
        self.ran.append(time.monotonic_ns())

    def give_up(self) -> int:
        return 0


MS = 1_000_000


def test_a_paced_piece_takes_its_stated_time_of_waits_only() -> None:
    board, counters = Clocked([(0, 20 * MS), (60 * MS, 100_000 * MS)], lives=True), SharedCounters()
    counters["open"] = 1
    filler = Pieces(2 * MS, 24)
    Slots(filler, board, counters, SlotRules(5 * MS, 100, paced=True)).run()
    # 48 ms of pieces, of which at most 20 ms ran in the first wait
    assert counters["state"] == FINISHED
    assert counters["filled_ns"] == board.entered[0] == 48 * MS
    first_end = board._waits[0][1]
    assert sum(at < first_end for at in filler.ran) <= 11
    assert not any(first_end <= at < board._waits[1][0] for at in filler.ran)
    board.close()
    counters.close()


class StoppedClock:
    """Time passes only where it is said to."""

    def __init__(self) -> None:
        self.now = MS

    def monotonic_ns(self) -> int:
        return self.now

    def process_time_ns(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


def test_pauses_between_paced_pieces_of_one_wait_are_part_of_their_stated_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = StoppedClock()
    monkeypatch.setattr(slots, "time", clock)

    class Slow(Pieces):
        def next_piece(self, room: Room) -> FillPiece | None:
            clock.sleep(0.0005)
            if len(self.ran) == 5 and clock.now < 100 * MS:
                return None  # no work for a while: no part of any piece
            return super().next_piece(room)

        def run(self) -> None:
            self.ran.append(clock.now)

    class Waiting(Clocked):
        waiting_since_ns = MS // 2
        waits = 0

    board, counters = Waiting([], lives=True), SharedCounters()
    counters["open"] = 1
    filler = Slow(2 * MS, 10)
    Slots(filler, board, counters, SlotRules(5 * MS, 100, paced=True)).run()
    assert [at // MS for at in filler.ran[:5]] == [1, 4, 6, 8, 10]
    assert [at - filler.ran[5] for at in filler.ran[5:]] == [k * 2 * MS + (k > 0) * 500_000 for k in range(5)]
    assert counters["filled_ns"] == 20 * MS
    board.close()
    counters.close()


def test_pieces_that_do_not_fit_are_not_started() -> None:
    for length, memory, fits in ((30 * MS, 100, False), (1 * MS, 9, False), (1 * MS, 10, True)):
        board, counters = Clocked([(0, 10 * MS)]), SharedCounters()
        counters["open"] = 1
        filler = Pieces(length, 3)
        Slots(filler, board, counters, SlotRules(20 * MS, memory)).run()
        assert bool(filler.ran) == fits or time.monotonic_ns() > board._waits[0][1]
        assert counters["pieces"] == len(filler.ran)
        if not fits:
            assert not filler.ran
        board.close()
        counters.close()


def test_a_piece_of_more_than_2_ms_needs_a_forecast_that_holds_it() -> None:
    board, counters = Clocked([(0, 30_000 * MS)], lives=True), SharedCounters()
    counters["open"] = 1
    filler = Pieces(8 * MS, 1)
    slots = Slots(filler, board, counters, SlotRules(10 * MS, 100))
    assert slots._room_ns(board.waiting_since_ns) == 2 * MS
    for _ in range(5):
        slots.forecast.observe(0, 0, 0, 29_000 * MS)
    board.position = 0
    slots._position = -1
    assert slots._room_ns(board.waiting_since_ns) == 10 * MS
    slots.run()
    assert counters["pieces"] == 1
    board.close()
    counters.close()


def test_nothing_runs_while_fillers_are_shut_out() -> None:
    board, counters = Clocked([(0, 100_000 * MS)]), SharedCounters()
    filler = Pieces(1 * MS, 3)
    Slots(filler, board, counters, SlotRules(20 * MS, 100)).run()
    assert not filler.ran
    board.close()
    counters.close()
