"""Fillers for the tests: a good one, and one for each thing that may go wrong. Standard library only."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from unidle.fill.sliced import FillPiece, Room


def spin(seconds: float) -> None:
    """Compute for so long, in CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Counter:
    """Writes a line for each unit, which is made of two pieces; finished after ``units``."""

    def __init__(self, out: str, units: int = 1_000_000, length_us: int = 200) -> None:
        self.out, self.units, self.seconds = out, units, length_us / 1e6
        self.length_ns, self.half = length_us * 1000, False
        self.done = len(Path(out).read_text().splitlines()) if Path(out).exists() else 0

    @property
    def finished(self) -> bool:
        return self.done >= self.units

    def next_piece(self, room: Room) -> FillPiece | None:
        return FillPiece(self.length_ns, 1000, int(self.half))

    def run(self) -> None:
        spin(self.seconds)
        if self.half:
            self.done += 1
            with Path(self.out).open("a") as file:
                file.write(f"{self.done}\n")
        self.half = not self.half

    def give_up(self) -> int:
        lost, self.half = self.length_ns * self.half, False
        return lost


class Bad(Counter):
    """Does one thing wrong in piece ``at``: ``how`` names it."""

    def __init__(self, out: str, how: str, at: int = 3, units: int = 1_000_000) -> None:
        super().__init__(out, units)
        self.how, self.at, self.count, self.held = how, at, 0, bytearray()

    def run(self) -> None:
        super().run()
        self.count += 1
        if self.count >= self.at:
            getattr(self, self.how)()

    def hang(self) -> None:
        threading.Event().wait()

    def loop(self) -> None:
        while True:
            pass

    def crash(self) -> None:
        os.abort()

    def fail(self) -> None:
        raise RuntimeError("it failed")

    def leave(self) -> None:
        os._exit(0)

    def leak(self) -> None:
        self.held += b"x" * (32 << 20)

    def overrun(self) -> None:
        """Ignores its slice for a while, again and again."""
        spin(0.15)

    def fork(self) -> None:
        """Starts processes in sessions of their own, which compute on."""
        if self.count == self.at:
            for _ in range(3):
                subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)

    def bomb(self) -> None:
        """Starts as many processes as it can."""
        for _ in range(500):
            subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)


class Deaf(Counter):
    """Does not answer when it is asked for its next piece."""

    def next_piece(self, room: Room) -> FillPiece | None:
        while True:
            pass


class TooLong(Counter):
    """Its pieces fit into no wait."""

    def next_piece(self, room: Room) -> FillPiece | None:
        return FillPiece(room.ns + 1)


class Idle(Counter):
    """Has nothing to do at the moment."""

    def next_piece(self, room: Room) -> FillPiece | None:
        return None


class Broken:
    """Is no filler."""
