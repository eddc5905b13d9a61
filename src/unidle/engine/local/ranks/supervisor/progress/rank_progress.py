"""All that is known of one rank's progress, from all that can be known."""

from __future__ import annotations

import _thread  # threading would cost a rank's supervisor more to import than all of this folder
import time

from .checkpoints import CheckpointWatch
from .custom_pattern import validate_pattern
from .helper_pipe import HelperPipe
from .scanner import Scanner
from .step_counter import StepCounter

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable

    from .readiness import Readiness
    from .step_counter import Mark

_SCAN_NS = 500_000_000
_SCAN_SHARE = 200  # scanning may take one part in 200 of the time
# a scan that takes longer goes on by itself: the rank has to be heard and stopped meanwhile
_FIRST_S, _PATIENCE_S, _LAST_S = 5.0, 0.2, 2.0


class RankProgress:
    """One rank's marks of steps, spans and checkpoints, each kind from its best source.

    What the script itself reports through ``unidle.rank`` takes precedence over what it prints, and what it
    prints before what is seen in the checkpoint directory; kind by kind, from the first report on.
    All times are on the controller's clock. Create it before the rank starts: what is in the
    checkpoint directory then is not the rank's.
    """

    def __init__(
        self, pattern: str | None = None, checkpoint_path: str | None = None, clock_offset_ns: int = 0,
        service: Readiness | None = None,
    ) -> None:  # fmt: skip
        self._offset_ns = clock_offset_ns
        self._notes: list[str] = []
        problem = None if pattern is None else validate_pattern(pattern)
        if problem is not None:
            self._notes.append(f"the progress pattern is not used: {problem}")
            pattern = None
        self._scanner = Scanner(pattern)
        self._helper = HelperPipe(clock_offset_ns)
        self._watch = CheckpointWatch(checkpoint_path) if checkpoint_path else None
        self._told_saved = -1
        self._next_scan_ns = 0
        self._apart = DetachedCall()
        self.service, self._checks = service, DetachedCall()
        if self._watch is not None:
            self._scan(self._watch, self._now_ns(), _FIRST_S)

    def output(self, stream: str, data: bytes, t_ns: int) -> list[Mark]:
        """Marks for a chunk of output, read at ``t_ns``."""
        return self._printed(self._scanner.feed(stream, data, t_ns))

    def helper(self, data: bytes, t_ns: int) -> list[Mark]:
        """Marks for what ``unidle.rank`` wrote to the pipe."""
        if "step" not in self._helper.spoke:
            # go on counting from what was printed so far
            self._helper.counter = StepCounter(after=self._scanner.last_step)
        marks = self._helper.feed(data, t_ns)
        if "step" in self._helper.spoke:
            self._scanner.stop_steps()
        return self._once(self._scanner.losses.put_on(marks))

    def tick(self, t_ns: int) -> list[Mark]:
        """Marks that were held back or come from the checkpoint directory. Call it every 0.1 to 1 s."""
        marks = self._note(t_ns)
        marks += self._printed(self._scanner.tick(t_ns)) + self._once(self._helper.tick(t_ns))
        if self._watch is not None and (self._apart.out or t_ns >= self._next_scan_ns):
            marks += self._seen(self._scan(self._watch, t_ns, 0.0 if self._apart.out else _PATIENCE_S))
        return marks if self.service is None else marks + self._answered(self.service, t_ns)

    def _answered(self, service: Readiness, t_ns: int) -> list[Mark]:
        """What the last check of a replica gave; another one begins."""
        marks = (self._checks.take(_PATIENCE_S) or []) if self._checks.out else []
        if not self._checks.out:
            self._checks.start(lambda: service.check(t_ns))
        return marks

    def finish(self, t_ns: int) -> list[Mark]:
        """The last marks: the rank has ended and all its output was fed."""
        if self._helper.dropped:
            self._notes.append(
                f"records that unidle.rank dropped, as the pipe was full: {self._helper.dropped}"
            )
        if self._helper.garbage:
            self._notes.append(f"lines on unidle.rank's pipe that are no records: {self._helper.garbage}")
        found = [] if self._watch is None else self._last_scan(self._watch, t_ns)
        marks = self._note(t_ns)
        marks += self._printed(self._scanner.flush(t_ns)) + self._once(self._helper.flush(t_ns))
        return marks + self._seen(found)

    def _scan(self, watch: CheckpointWatch, t_ns: int, wait_s: float, final: bool = False) -> list[Mark]:
        """Marks of a scan, or of the one that is still out; none where it is not back after ``wait_s``."""
        if not self._apart.out:
            self._apart.start(lambda: watch.scan(t_ns, final))
        marks = self._apart.take(wait_s)
        if marks is None:
            return []
        # by CPU time, not wall time: on a busy machine a cheap scan takes long
        self._next_scan_ns = t_ns + max(_SCAN_NS, _SCAN_SHARE * self._apart.used_ns)
        return marks

    def _last_scan(self, watch: CheckpointWatch, t_ns: int) -> list[Mark]:
        marks = self._scan(watch, t_ns, _LAST_S) if self._apart.out else []
        if not self._apart.out:
            marks += self._scan(watch, t_ns, _LAST_S, final=True)
        if self._apart.out:
            self._notes.append("the checkpoint directory does not answer: what was saved last is not known")
        return marks

    def _now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._offset_ns

    def _printed(self, marks: list[Mark]) -> list[Mark]:
        """Without the kinds that the helper reports itself."""
        spoke = self._helper.spoke
        return self._once([mark for mark in marks if mark["k"] == "note" or mark["k"] not in spoke])

    def _seen(self, marks: list[Mark]) -> list[Mark]:
        """Checkpoints from the directory; without their step where steps are counted otherwise."""
        if "saved" in self._helper.spoke:
            return []
        if "step" in self._helper.spoke:
            comparable = not self._helper.counts_calls and not self._helper.counter.base
        else:
            comparable = self._scanner.numbers_are_steps
        if not comparable:
            marks = [{key: value for key, value in mark.items() if key != "n"} for mark in marks]
        return self._once(marks)

    def _once(self, marks: list[Mark]) -> list[Mark]:
        """Each saved step is reported once, no matter which of the two sees it."""
        kept = []
        for mark in marks:
            if mark["k"] == "saved" and "n" in mark:
                if mark["n"] == self._told_saved:
                    continue
                self._told_saved = mark["n"]
            kept.append(mark)
        return kept

    def _note(self, t_ns: int) -> list[Mark]:
        marks: list[Mark] = [{"k": "note", "t": t_ns, "text": text} for text in self._notes]
        self._notes = []
        return marks


class DetachedCall:
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
