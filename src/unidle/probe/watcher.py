"""Runs the detectors of all nodes, each in a thread of its own, so that one that hangs does not block the others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unidle.atomic import replaced
from unidle.clock import Bell, boottime_ns
from unidle.probe.detector import Detection, DetectorStatus, FaultDetector

HANGS_S: Final = 15.0
"""A look that takes longer is reported: until it comes back the detector sees nothing."""
NEWS_EVERY_S: Final = 2.0
"""Interval at which a detector that announces its news is polled without any."""
_PAUSE_S: Final = 0.01  # at least, between two looks
_SAVE_EVERY_S: Final = 1.0
_MOST_DETECTIONS: Final = 1000
_CLOSE_S: Final = 1.0
_KEPT_MOST: Final = 4096

Make = Callable[[str], FaultDetector]
"""A detector, from what its last instance kept (empty: there was none)."""


@dataclass(frozen=True, slots=True)
class DetectorSpec:
    """A detector that is to run. ``make`` is called in its thread."""

    node: str
    name: str
    make: Make
    every_s: float

    @property
    def key(self) -> str:
        return f"{self.node} {self.name}"


@dataclass(slots=True)
class _Post:
    wanted: DetectorSpec
    kept: str  # of the last batch that was taken
    begun_s: float = 0.0  # since when it looks; 0: it does not
    looked: bool = False
    why_not: str = ""
    lost: int = 0
    detections: list[Detection] = field(default_factory=list)
    now_kept: str = ""
    begins: str = ""  # where it began
    thread: threading.Thread | None = None
    bell: Bell | None = None  # rung at the end


class Watcher:
    """Runs the ``wanted`` detectors after :meth:`start`. ``file`` keeps how far each one has read.

    Findings count as read only when a later call confirms that they were logged. So logged findings are not reported
    again, and others are not lost. ``offset_ns`` converts the boot-time clock to the log's time.
    """

    def __init__(self, wanted: tuple[DetectorSpec, ...], file: Path, offset_ns: int) -> None:
        self._file, self._offset_ns = file, offset_ns
        self._saved = _load(file)
        self._posts = [_Post(one, self._saved.get(one.key, "")) for one in wanted]
        self._lock = threading.Lock()
        self._ends = False
        self._save_s, self._written = 0.0, ""
        self._taken: dict[str, str] = {}  # positions of what was taken with the last call

    def start(self) -> None:
        for post in self._posts:
            post.bell = Bell()
            post.thread = threading.Thread(
                target=self._run, args=(post,), name=f"unidle-{post.wanted.name}", daemon=True
            )
            post.thread.start()

    def take(self, *, logged: bool = True) -> tuple[list[Detection], list[DetectorStatus]]:
        """The findings since the last call, oldest first, and whether each detector that has run can see its node.

        ``logged``: all findings of earlier calls are in the log, or need not be logged.
        """
        detections: list[Detection] = []
        seeing: list[DetectorStatus] = []
        now_s = time.monotonic()
        with self._lock:
            for (
                post
            ) in self._posts:  # where it began counts from now on: a controller may be killed at any moment
                if post.begins and post.wanted.key not in self._saved:
                    self._saved[post.wanted.key] = post.begins
                    self._save_s = 0.0
            if logged:
                self._saved.update(self._taken)
                self._taken = {}
            for post in self._posts:
                detections += post.detections
                post.detections = []
                if post.now_kept:
                    self._taken[post.wanted.key] = post.now_kept
                late_s = now_s - post.begun_s if post.begun_s else 0.0
                if late_s > HANGS_S:
                    why = f"the {post.wanted.name} has not answered for more than {HANGS_S:.0f} s"
                    seeing.append(DetectorStatus(post.wanted.node, post.wanted.name, why, post.lost))
                elif post.looked:
                    seeing.append(DetectorStatus(post.wanted.node, post.wanted.name, post.why_not, post.lost))
        if now_s - self._save_s >= _SAVE_EVERY_S:
            self._save_s = now_s
            self._save()
        return sorted(detections, key=lambda one: one.signal_ns), seeing

    def close(self, *, logged: bool) -> None:
        """End all threads; one that hangs is left behind. ``logged`` as for :meth:`take`."""
        self._ends = True
        for post in self._posts:
            if post.bell is not None:
                post.bell.ring()
        until_s = time.monotonic() + _CLOSE_S
        for post in self._posts:
            if post.thread is None or post.bell is None:
                continue
            post.thread.join(max(until_s - time.monotonic(), 0.0))
            if not post.thread.is_alive():
                post.bell.close()
        if logged:
            self._saved.update(self._taken)
        self._save()

    def _run(self, post: _Post) -> None:
        detector: FaultDetector | None = None
        while not self._ends:
            began_s = time.monotonic()
            with self._lock:
                full = (
                    len(post.detections) >= _MOST_DETECTIONS
                )  # nobody takes: what the log says is read later
                post.begun_s = began_s
            found: list[Detection] = []
            try:
                if detector is None:
                    detector = post.wanted.make(post.kept)
                    post.begins = detector.keep()
                if not full:
                    found = detector.look(boottime_ns() + self._offset_ns)
                (why_not, lost), kept = detector.seeing(), detector.keep()
            except Exception as error:  # whatever it is: it must not end the watch in silence
                (why_not, lost), kept = (f"{type(error).__name__}: {error}", post.lost), post.now_kept
            with self._lock:
                post.begun_s, post.looked = 0.0, True
                post.why_not, post.lost, post.now_kept = why_not, lost, kept
                post.detections += found
            self._rest(post, -1 if detector is None else detector.news_fd(), began_s)
        if detector is not None:
            with suppress(OSError):
                detector.close()

    def _rest(self, post: _Post, news_fd: int, began_s: float) -> None:
        """Until the next look is due, never more often than the detector is to run."""
        assert post.bell is not None
        due_s = max(began_s + post.wanted.every_s, time.monotonic() + _PAUSE_S)
        if news_fd >= 0 and post.bell.wait(NEWS_EVERY_S, news_fd):
            return
        if (left_s := due_s - time.monotonic()) > 0:
            post.bell.wait(left_s)

    def _save(self) -> None:
        """A file that cannot be written costs only that the next controller reads some lines again."""
        own = {post.wanted.key for post in self._posts}
        others = [key for key in self._saved if key not in own]
        for key in others[:-_KEPT_MOST]:
            del self._saved[key]
        text = json.dumps(self._saved)
        if text == self._written:
            return
        with suppress(OSError):
            with replaced(self._file, 0o666, umask=True) as file:
                file.write(text.encode())
            self._written = text


def _load(file: Path) -> dict[str, str]:
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(told, Mapping):
        return {}
    return {str(key): value for key, value in told.items() if isinstance(value, str)}
