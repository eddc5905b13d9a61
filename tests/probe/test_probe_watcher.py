"""Detectors in threads: positions that survive a crash, one that hangs, one that breaks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from unidle.clock import Bell
from unidle.guard.log.model import Finding
from unidle.probe import watcher as room
from unidle.probe.detector import Detection, DetectorStatus
from unidle.probe.watcher import DetectorSpec, Watcher
from waiting import wait_until

FINDING = Finding(1, "xid", 79, "0000:3b:00.0", "culprit", "reboot_node", "gone")


class Counting:
    """Tells the numbers from where the last instance ended; ``act`` is called at each look."""

    def __init__(self, kept: str, act: Callable[[int], None]) -> None:
        self.next = int(kept or 0)
        self._act = act

    def look(self, now_ns: int) -> list[Detection]:
        self._act(self.next)
        number, self.next = self.next, self.next + 1
        return [Detection("n1", "count", "", FINDING, number, number, "test")]

    def seeing(self) -> tuple[str, int]:
        return "", 0

    def keep(self) -> str:
        return str(self.next)

    def news_fd(self) -> int:
        return -1

    def close(self) -> None: ...


@contextmanager
def watched(file: Path, act: Callable[[int], None] = lambda _: None, others: int = 0) -> Iterator[Watcher]:
    wanted = [DetectorSpec("n1", "count", lambda kept: Counting(kept, act), 0.001)]
    wanted += [
        DetectorSpec("n2", f"other {k}", lambda kept: Counting(kept, lambda _: None), 0.001)
        for k in range(others)
    ]
    one = Watcher(tuple(wanted), file, 0)
    one.start()
    try:
        yield one
    finally:
        one.close(logged=False)


def some(one: Watcher, *, logged: bool = True) -> list[int]:
    found: list[int] = []
    wait_until(lambda: found.extend(h.signal_ns for h in one.take(logged=logged)[0]) or found, 60, "a number")
    return found


def test_what_was_logged_is_never_told_again_and_nothing_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "watch.json"
    told: list[int] = []
    for _ in range(3):
        with watched(file) as one:
            told += some(one)
            told += some(one)
            one.close(logged=True)
    assert told == list(range(len(told)))


def test_what_was_taken_and_not_logged_is_told_by_the_next(tmp_path: Path) -> None:
    file = tmp_path / "watch.json"
    with watched(file) as one:
        first = some(one, logged=False)
    with watched(file) as one:
        assert some(one)[0] == first[0] == 0


def test_a_detector_that_hangs_is_told_and_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "HANGS_S", 0.2)
    free = threading.Event()

    def hang(number: int) -> None:
        if number == 2:
            free.wait(60)

    with watched(tmp_path / "watch.json", hang, others=1) as one:

        def told() -> list[DetectorStatus]:
            return [s for s in one.take()[1] if s.why_not]

        [blind] = wait_until(told, 60, "the hanging detector")
        assert (blind.node, "has not answered" in blind.why_not) == ("n1", True)
        assert some(one), "the other one goes on"
        free.set()
        wait_until(lambda: not told(), 60, "the detector to see again")


def test_a_detector_that_breaks_is_told_and_tried_again(tmp_path: Path) -> None:
    broken = [True]

    def breaks(_number: int) -> None:
        if broken[0]:
            raise OSError("no such device")

    with watched(tmp_path / "watch.json", breaks) as one:
        wait_until(lambda: any("no such device" in s.why_not for s in one.take()[1]), 60, "the error")
        broken[0] = False
        assert some(one)[0] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"n1 count": 5}'])
def test_a_damaged_file_of_positions_means_a_new_beginning(tmp_path: Path, text: str) -> None:
    file = tmp_path / "watch.json"
    file.write_text(text)
    with watched(file) as one:
        assert some(one)[0] == 0
        one.close(logged=True)
    assert int(json.loads(file.read_text())["n1 count"]) > 0


def test_where_a_detector_began_is_kept_before_anything_it_heard_is_logged(tmp_path: Path) -> None:
    file = tmp_path / "positions.json"
    with watched(file) as one:
        some(one, logged=False)
        assert json.loads(file.read_text()) == {
            "n1 count": "0"
        }  # as a controller leaves it that is killed now


class Piped(Counting):
    """Says by a pipe when there is something to look at."""

    def __init__(self, kept: str, fd: int) -> None:
        super().__init__(kept, lambda _: None)
        self._fd = fd

    def look(self, now_ns: int) -> list[Detection]:
        return super().look(now_ns) if os.read(self._fd, 1) else []

    def news_fd(self) -> int:
        return self._fd


def test_a_detector_that_says_when_it_has_news_is_looked_at_then_and_hardly_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "NEWS_EVERY_S", 600.0)
    news, says = os.pipe()
    os.write(says, b"x")
    with closing_both(news, says):
        one = Watcher(
            (DetectorSpec("n1", "piped", lambda kept: Piped(kept, news), 0.001),), tmp_path / "watch.json", 0
        )
        one.start()
        try:
            assert some(one) == [0]
            for number in (1, 2):
                os.write(says, b"x")  # a look without it would wait for the pipe, and be told to hang
                assert some(one) == [number]
        finally:
            one.close(logged=False)


@contextmanager
def closing_both(*fds: int) -> Iterator[None]:
    try:
        yield
    finally:
        for fd in fds:
            os.close(fd)


def test_a_bell_is_heard_by_who_rests_and_by_who_comes_later() -> None:
    bell, heard = Bell(), []
    rests = threading.Thread(target=lambda: heard.append(bell.wait(600)))
    rests.start()
    bell.ring()
    rests.join()
    assert heard == [True]
    assert bell.wait(600)
    bell.close()
    bell.ring()


def test_who_rests_beside_a_bell_goes_on_when_its_file_can_be_read() -> None:
    bell = Bell()
    news, says = os.pipe()
    with closing_both(news, says):
        os.write(says, b"x")
        assert not bell.wait(600, news)
        assert not bell.wait(0.01)
    bell.close()
