"""Optional: a training script reports its own steps, waits and checkpoints.

Two lines are enough::

    import unidle.rank as rank
    rank.step()  # at the end of each training step

and the rest reports waits and checkpoints exactly::

    with rank.data_wait():
        batch = next(batches)
    with rank.saving():
        torch.save(state, path)
    rank.saved(step)

and, if a script resumes from a checkpoint, the lost work::

    rank.restored(step)

A script that waits for others (a receive of a pipeline, a collective) can let fillers in meanwhile::

    with rank.waiting():
        work.wait()

Outside of an unidle job every other call does nothing, so the lines can stay in a script; where unidle
may not be installed, guard the import::

    try:
        import unidle.rank as rank
    except ImportError:
        rank = None

No call here blocks, raises or prints. Records go through a pipe that the rank's supervisor made; when it is
full they are dropped and counted. Only the process that imported this module reports, not its forks (data
loader workers), and waits count only in the thread that calls :func:`step`.
"""

from __future__ import annotations

import os
import stat
import time
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unidle.rank.flops import FlopCount
    from unidle.rank.waits import WaitBoard

__all__ = [
    "compiling",
    "data_wait",
    "evaluation",
    "ready",
    "restored",
    "restoring",
    "saved",
    "saving",
    "show_waits",
    "step",
    "tell",
    "waiting",
]

_PATH_CHARS = 512  # with escapes still below PIPE_BUF, so that a record is written whole or not at all
_FULL_PAUSE_NS = 1_000_000
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def _now_ns() -> int:
    return time.clock_gettime_ns(_BOOTTIME or 0)


class _Reporter:
    """The state of this process: where to write, and how far it is."""

    __slots__ = ("again_ns", "depth", "dropped", "fd", "inode", "n", "pid", "thread")

    def __init__(self, where: str) -> None:
        self.fd = -1
        self.inode = 0
        self.pid = os.getpid()
        self.n = 0
        self.depth = 0
        self.dropped = 0
        self.again_ns = 0
        self.thread: int | None = None
        fd, _, inode = where.partition(":")
        if fd.isdecimal() and inode.isdecimal() and _BOOTTIME is not None:
            self.fd, self.inode = int(fd), int(inode)
            if self.may_write():
                os.set_blocking(self.fd, False)

    def may_write(self) -> bool:
        """Whether the descriptor is still the supervisor's pipe, and this process still the importer.

        Checked each time: a script may close descriptors, and the number may then be a checkpoint's.
        """
        if self.fd < 0 or os.getpid() != self.pid:
            return False
        try:
            state = os.fstat(self.fd)
        except OSError:
            state = None
        if state is None or state.st_ino != self.inode or not stat.S_ISFIFO(state.st_mode):
            self.fd = -1
            return False
        return True

    def write(self, record: str, t_ns: int) -> None:
        """One record, whole or not at all; never waits."""
        if t_ns < self.again_ns:
            self.dropped += 1
            return
        if not self.may_write():
            return
        if self.dropped:
            record = f'{{"k":"dropped","t":{t_ns},"n":{self.dropped}}}\n{record}'
        try:
            os.write(self.fd, record.encode())
            self.dropped = 0
        except BlockingIOError:
            self.dropped += 1
            self.again_ns = t_ns + _FULL_PAUSE_NS
        except OSError:
            self.fd = -1  # nobody reads any more


def _reporter() -> _Reporter:
    try:
        return _Reporter(os.environ.get("UNIDLE_RANK_FD", ""))
    except Exception:  # whatever the variable holds, training goes on
        return _Reporter("")


_self = _reporter()
_board: WaitBoard | None = None
_tried = False
_filled = (0, 0)
_flops: FlopCount | None = None
_flops_over = os.environ.get("UNIDLE_COUNT_FLOPS") != "1"


def step(n: int | None = None) -> None:
    """A training step is complete: step ``n``; without ``n``, steps are counted."""
    me = _self
    board = _board
    if board is not None:
        _step_of_board(board, n)
    if me.fd < 0:
        return
    t_ns = _now_ns()
    if me.thread is None:
        me.thread = get_ident()
    counted = n is None
    number = me.n + 1 if n is None else _natural(n)
    if number is None:
        return
    me.n = number
    kind = ',"c":1' if counted else ""
    me.write(f'{{"k":"step","t":{t_ns},"n":{number}{kind}}}\n', t_ns)
    if not _flops_over:
        _count_flops()


def _count_flops() -> None:
    """At the end of a step: one of the next is counted, where the job file has ``flops: counted``."""
    global _flops, _flops_over
    found = None
    try:
        if _flops is None:
            from unidle.rank.flops import FlopCount

            _flops = FlopCount()
        goes_on, found = _flops.after_step()
    except Exception:  # whatever PyTorch says, training goes on
        goes_on = False
    _flops_over = not goes_on
    if found is not None:
        t_ns = _now_ns()
        _self.write(f'{{"k":"flops","t":{t_ns},"n":{found}}}\n', t_ns)


def saved(step: int | None = None, path: str | os.PathLike[str] | None = None) -> None:
    """A checkpoint is durable: its content survives this process. Default: the last step."""
    me = _self
    if me.fd < 0:
        return
    t_ns = _now_ns()
    number = _natural(step) if step is not None else me.n or None
    record = f'{{"k":"saved","t":{t_ns}'
    if number is not None:
        record += f',"n":{number}'
    me.write(record + _text(path) + "}\n", t_ns)


def restored(step: int) -> None:
    """The state after step ``step`` was loaded: the next one is ``step + 1``. 0: there was no checkpoint."""
    me = _self
    number = _natural(step)
    if me.fd < 0 or number is None:
        return
    t_ns = _now_ns()
    me.write(f'{{"k":"restored","t":{t_ns},"n":{number}}}\n', t_ns)


def ready() -> None:
    """Set-up is over, the first step begins."""
    if _self.fd >= 0:
        t_ns = _now_ns()
        _self.write(f'{{"k":"ready","t":{t_ns}}}\n', t_ns)


class _Wait:
    """A stretch of time with a name. Inside another one it is part of that one."""

    __slots__ = ("_counts", "_start_ns", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._start_ns = 0
        self._counts = False

    def __enter__(self) -> None:
        me = _self
        if me.fd < 0 or (me.thread is not None and me.thread != get_ident()):
            return
        self._counts = True
        me.depth += 1
        if me.depth == 1:
            self._start_ns = _now_ns()
            me.write(f'{{"k":"begin","t":{self._start_ns},"w":"{self._what}"}}\n', self._start_ns)

    def __exit__(self, *_: object) -> None:
        if not self._counts:
            return
        self._counts = False
        me = _self
        me.depth -= 1
        if me.depth == 0:
            end_ns = _now_ns()
            me.write(f'{{"k":"span","t":{self._start_ns},"e":{end_ns},"w":"{self._what}"}}\n', end_ns)


def data_wait() -> _Wait:
    """``with data_wait():`` around code that fetches the next batch."""
    return _Wait("data")


def evaluation() -> _Wait:
    """``with evaluation():`` around an evaluation between training steps."""
    return _Wait("eval")


def saving() -> _Wait:
    """``with saving():`` around code that blocks training while a checkpoint is saved."""
    return _Wait("save")


def restoring() -> _Wait:
    """``with restoring():`` around reading a checkpoint."""
    return _Wait("restore")


def compiling() -> _Wait:
    """``with compiling():`` around compilation and warm-up."""
    return _Wait("compile")


class _Waiting:
    """A wait in which a filler may run."""

    __slots__ = ("_on",)

    def __enter__(self) -> None:
        global _board, _tried
        self._on = False
        if _board is None and not _tried:
            _tried = True
            try:
                from unidle.rank import waits

                _board = waits.board()
            except Exception:  # whatever is missing, training goes on
                return
        if _board is not None and (_self.thread is None or _self.thread == get_ident()):
            self._on = True
            _board.begin()

    def __exit__(self, *_: object) -> None:
        if self._on and _board is not None:
            _board.end()


def waiting() -> _Waiting:
    """``with waiting():`` around code that waits for other ranks: a filler next to this rank may run meanwhile.

    It works outside of unidle jobs, too. Steps are those of :func:`step`, and a wait is known by its number in the step.
    """
    return _Waiting()


def show_waits() -> None:
    """From now on every ``wait()`` of a ``torch.distributed`` operation is in :func:`waiting`: receives of pipelines, asynchronous collectives.

    It covers ``torch.distributed.pipelining`` and other pipelines of Python. What waits inside C++, such as the collectives of DDP in the backward pass,
    does not show; let fillers run by ``windows: kernel`` there. Without PyTorch it does nothing.
    """
    try:
        from importlib import import_module

        work = import_module("torch.distributed").Work
        plain = work.wait
        if getattr(plain, "shows_waits", False):
            return

        def wait(self: object, *given: object, **named: object) -> object:
            with waiting():
                return plain(self, *given, **named)

        wait.shows_waits = True  # type: ignore[attr-defined]
        work.wait = wait
    except Exception:  # whatever is missing, training goes on
        return


def _step_of_board(board: WaitBoard, n: int | None) -> None:
    """A step for fillers, and what they did in it for the ledger."""
    global _filled
    number = _natural(n) if n is not None else None
    board.step(board.steps + 1 if number is None else number)
    filled = board.filled_ns()
    if filled == _filled or _self.fd < 0:
        return
    end_ns = _now_ns()
    for what, ns in (("discarded", filled[1] - _filled[1]), ("fill", filled[0] - _filled[0])):
        if ns > 0:
            _self.write(f'{{"k":"span","t":{max(end_ns - ns, 0)},"e":{end_ns},"w":"{what}"}}\n', end_ns)
            end_ns = max(end_ns - ns, 0)
    _filled = filled


def tell(record: dict[str, object]) -> None:
    """Write a record for the supervisor with its own time (``t``, CLOCK_BOOTTIME in ns), for past events."""
    if _self.fd >= 0:
        import json

        _self.write(json.dumps(record) + "\n", _now_ns())


def _natural(value: object) -> int | None:
    try:
        number = int(value)  # type: ignore[call-overload]
    except Exception:  # whatever the script passes, training goes on
        return None
    return number if isinstance(number, int) and 0 <= number < 2**63 else None


def _text(path: object) -> str:
    if path is None:
        return ""
    try:
        import json

        return ',"text":' + json.dumps(os.fsdecode(path)[-_PATH_CHARS:])  # type: ignore[arg-type]
    except Exception:  # as above
        return ""
