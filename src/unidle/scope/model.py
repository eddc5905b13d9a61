"""What one look at running processes found: stacks with their time, threads, calls, spans. Plain data, with a JSON form.

Stacks are lists of frame numbers, root first. Time is in nanoseconds of the kernel's monotonic clock. The code that fills
a :class:`Profile` (a tier) and its readers (budget, reports, exports) know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, Literal, Self, get_args

from unidle.errors import BadInput

FORM: Final = 1

FrameKind = Literal["python", "native", "kernel", "wait", "device"]
State = Literal["on", "off", "runq"]
Tier = Literal["T0", "T1", "T2", "T3"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack. ``wait`` frames are leaves that say what a blocked thread waits in (``futex``, ``read file``)."""

    kind: FrameKind
    function: str
    file: str = ""  # source file; of native frames without line information nothing
    line: int = 0
    module: str = ""  # file name of the shared object or program, without its directory


@dataclass(frozen=True, slots=True)
class Sample:
    """All that was seen of one thread with one stack in one state: on a CPU, blocked, or waiting for a CPU."""

    pid: int
    tid: int
    stack: int
    state: State
    count: int
    ns: int  # the time that these samples stand for


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread and its times: exact where the tier measures them, else the sums of its samples."""

    pid: int
    tid: int
    name: str
    on_ns: int
    off_ns: int
    runq_ns: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was watched, with its rank where it has one."""

    pid: int
    command: str
    parent: int = 0
    python: str = ""  # "3.11", or nothing
    rank: int | None = None
    job: str = ""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """How often a probed function was called by a thread, and how long calls took together. ``kind`` groups names."""

    pid: int
    tid: int
    name: str
    kind: str  # "operator", "collective", "copy", "launch", "sync", "alloc", "free", "gc", "gil", "backward", "tcp", "file"
    count: int
    ns: int | None = None  # nothing where only entries are counted
    n_bytes: int = 0
    stack: int | None = None  # the call site, where it is known


@dataclass(frozen=True, slots=True)
class Span:
    """One call on the time line. Only as many are kept as the tier's bound allows; ``Quality.spans_dropped`` counts the rest."""

    pid: int
    tid: int
    name: str
    kind: str
    start_ns: int
    end_ns: int
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StackMemory:
    """Memory of one call site: what it allocated in the window, and what of that was still there at its end.

    The device ``pages`` is the host's memory as the kernel hands it out, where no allocator was followed to the block:
    arenas of Python's small objects, mappings, growth of the heap. What is in ``host`` is not in ``pages`` again.
    """

    pid: int
    stack: int
    device: str  # "host", "pages", "cuda:0"
    allocated_bytes: int
    allocations: int
    live_bytes: int
    live: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What of a call site's memory was live at a moment of the window. Moments at which nothing changed have no row; before the first row it was nothing."""

    pid: int
    stack: int
    device: str
    time_ns: int
    live_bytes: int
    live: int


@dataclass(frozen=True, slots=True)
class Truncation:
    """From this moment on a kind of memory was not followed, because it would have cost too much: its numbers are lower bounds, of before."""

    what: str  # "malloc", "tensor memory", "caching allocator", "cuda memory", "cuda driver memory", "pages"
    time_ns: int


@dataclass(frozen=True, slots=True)
class Quality:
    """How far the figures can be trusted. Shares are in percent; what a tier cannot know is nothing."""

    samples: int = 0
    drops: int = 0
    rooted_pct: float = 100.0
    symbolised_pct: float = 100.0
    merge_mismatch_pct: float = 0.0
    bpf_cpu_pct: float | None = None
    agent_cpu_pct: float | None = None  # of the profiler's whole process, once it was attached
    attach_cpu_s: float | None = None  # its processor time until then
    spans_dropped: int = 0
    first_sample_ns: int | None = None  # from attach to the first complete sample
    notes: tuple[str, ...] = ()  # what was left out and why, one line each


@dataclass(frozen=True, slots=True)
class Profile:
    """One look, of one or several processes."""

    tier: Tier
    start_ns: int
    end_ns: int
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    samples: tuple[Sample, ...] = ()
    threads: tuple[Thread, ...] = ()
    processes: tuple[Process, ...] = ()
    calls: tuple[Call, ...] = ()
    spans: tuple[Span, ...] = ()
    memory: tuple[StackMemory, ...] = ()
    moments: tuple[Moment, ...] = ()  # of what in ``memory`` was live at the end
    cuts: tuple[Truncation, ...] = ()
    quality: Quality = field(default_factory=Quality)
    misses: tuple[str, ...] = ()  # what this tier cannot see, one line each
    hz: int = 99
    wall_start_ns: int = 0  # UTC at start_ns

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The frames of a stack, root first."""
        return tuple(self.frames[n] for n in self.stacks[number])

    def of_processes(self, pids: Collection[int]) -> Self:
        """The rows of these processes."""
        mine = frozenset(pids)
        kept: dict[str, Any] = {
            name: tuple(row for row in getattr(self, name) if row.pid in mine)
            for name in ("processes", "samples", "threads", "calls", "spans", "memory", "moments")
        }
        return replace(self, **kept)

    def to_json(self) -> dict[str, Any]:
        """A form that :meth:`from_json` takes back unchanged. Rows are lists, so that a million samples stay small."""
        rows = {name: [list(row) for row in map(_FIELDS[name], getattr(self, name))] for name in _ROWS}
        plain = {name: getattr(self, name) for name in ("tier", "start_ns", "end_ns", "hz", "wall_start_ns")}
        return {
            "form": FORM,
            **plain,
            "misses": list(self.misses),
            "quality": asdict(self.quality) | {"notes": list(self.quality.notes)},
            "stacks": [list(stack) for stack in self.stacks],
            **rows,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Raises :class:`BadInput` for what :meth:`to_json` does not write."""
        try:
            if told["form"] != FORM:
                raise BadInput(
                    "is of another form",
                    field="form",
                    value=told["form"],
                    remedy=f"this version reads form {FORM}",
                )
            rows: dict[str, Any] = {
                name: tuple(kind(*row) for row in (told.get(name, ()) if name in _LATER else told[name]))
                for name, kind in _ROWS.items()
            }
            quality = dict(told["quality"])
            made = cls(
                **{name: told[name] for name in ("tier", "start_ns", "end_ns", "hz", "wall_start_ns")},
                misses=tuple(told["misses"]),
                quality=Quality(**quality | {"notes": tuple(quality["notes"])}),
                stacks=tuple(map(tuple, told["stacks"])),
                **rows,
            )
            made._check()
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise BadInput(
                f"is no profile of unidle: {type(error).__name__}: {error}", field="profile"
            ) from None
        return made

    def _check(self) -> None:
        from unidle.scope.samples import rows_of  # NumPy is loaded only where a profile is read

        rows_of(self.samples)
        frames, stacks = len(self.frames), len(self.stacks)
        if self.tier not in get_args(Tier):
            raise ValueError(f"tier {self.tier!r}")
        if any(not 0 <= n < frames for stack in self.stacks for n in stack):
            raise ValueError("a stack names a frame that is not there")
        named = (
            [s.stack for s in self.samples] + [h.stack for h in self.memory] + [m.stack for m in self.moments]
        )
        named += [c.stack for c in self.calls if c.stack is not None]
        if any(not 0 <= n < stacks for n in named):
            raise ValueError("a sample names a stack that is not there")


_ROWS: Final[dict[str, Any]] = {
    "frames": Frame, "samples": Sample, "threads": Thread, "processes": Process,
    "calls": Call, "spans": Span, "memory": StackMemory, "moments": Moment, "cuts": Truncation,
}  # fmt: skip
_LATER: Final = frozenset({"moments", "cuts"})  # files written before have none
_FIELDS: Final[dict[str, Callable[[Any], tuple[Any, ...]]]] = {
    name: attrgetter(*(one.name for one in fields(kind))) for name, kind in _ROWS.items()
}
