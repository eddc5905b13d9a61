"""One call at a time, in a thread that may be left behind: a look into a directory of a dead file server never returns."""

from __future__ import annotations

import _thread  # threading would cost a rank's supervisor more to import than all of this folder
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .steps import Mark


class Apart:
    """Makes calls that give marks. While one is out no other is begun."""

    def __init__(self) -> None:
        self.out = False
        self._done = _thread.allocate_lock()  # held while a call is out
        self._marks: list[Mark] = []
        self._error: Exception | None = None
        self.used_ns = 0
        """CPU time of the last call that came back."""

    def start(self, call: Callable[[], list[Mark]]) -> None:
        self._done.acquire()
        self.out = True
        try:
            _thread.start_new_thread(self._run, (call,))
        except RuntimeError:  # no thread is to be had: do without one
            self._run(call)

    def take(self, wait_s: float) -> list[Mark] | None:
        """What the call that is out gave; None where it is not back after ``wait_s``. Errors: those of the call."""
        if not self._done.acquire(timeout=wait_s):
            return None
        self._done.release()
        self.out = False
        marks, self._marks = self._marks, []
        error, self._error = self._error, None
        if error is not None:
            raise error
        return marks

    def _run(self, call: Callable[[], list[Mark]]) -> None:
        before_ns = time.thread_time_ns()
        try:
            self._marks = call()
        except Exception as error:  # raised again for who takes
            self._error = error
        finally:
            self.used_ns = time.thread_time_ns() - before_ns
            self._done.release()
