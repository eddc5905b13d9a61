"""One look at the ranks of a gang that hangs: where each of them stands. ``python -m unidle.scope.stacks`` is run for it.

It reads ``/proc`` and memory (tier T2) and changes nothing. Orders come as one line of JSON on standard input; two
lines of :class:`RankStack` come back: at once what the kernel shows of each rank, then their stacks. The controller may end
it after the first line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from unidle.engine.local.ranks import process_tree
from unidle.errors import UnidleError
from unidle.events.guard import RankStack
from unidle.scope.model import Frame, Profile, Sample
from unidle.scope.rules import is_user_file, leaf_of, plain_name, short_name
from unidle.scope.stack_process import joined

if TYPE_CHECKING:
    from unidle.scope.rules import RuleSet
    from unidle.scope.tiers import ProfilerWatch

LOOK_S: Final = 0.02
FRAMES_KEPT: Final = 24
FRAME_CHARS: Final = 160
PROCESSES: Final = 64  # of a rank
_WRAPPERS: Final = frozenset({"wrapper", "inner", "decorate_context", "new_func"})
_JOINS: Final = ("/threading.py", "/concurrent/futures/thread.py", "/concurrent/futures/_base.py")
_STATES: Final = {"T": "stopped", "t": "stopped", "R": "running", "Z": "ended", "X": "ended"}


class StackRequest(msgspec.Struct, frozen=True):
    """What to look at: the ranks of an attempt below a run directory; of these ``only`` some, where not all are here."""

    root: str
    job: str
    attempt: int
    ranks: int
    only: tuple[int, ...] | None = None

    @property
    def wanted(self) -> Sequence[int]:
        return range(self.ranks) if self.only is None else self.only


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank that is alive: its own process first, then those below it, parents before children."""

    rank: int
    pids: tuple[int, ...]
    states: Mapping[int, str] = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        return any(state == "stopped" for state in self.states.values())


def main() -> int:
    """Read orders, write what was found. 0, also where nothing could be seen: that is part of the answer.

    What takes time to load is loaded before orders come: it may be started when a gang only begins to look suspicious.
    """
    from unidle.scope.rules import RuleSet
    from unidle.scope.rules_file import shipped
    from unidle.scope.tiers import native  # noqa: F401

    with suppress(ImportError):
        import unidle_scope  # noqa: F401
    rules = RuleSet(shipped())
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # not needed after all
    orders = msgspec.json.decode(line, type=StackRequest)
    alive = _alive(orders)
    gone = [rank for rank in orders.wanted if rank not in {one.rank for one in alive}]
    ended = [RankStack(tuple(gone), "ended")] if gone else []
    _write(joined([*ended, *map(_from_kernel, alive)]))
    _write(joined([*ended, *_looked_at(alive, rules)]))
    return 0


def _write(stacks: Sequence[RankStack]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(stacks) + b"\n")
    sys.stdout.buffer.flush()


def _alive(orders: StackRequest) -> list[_Rank]:
    from unidle.scope.targets import pids_of_ranks

    found = pids_of_ranks(Path(orders.root), orders.job, orders.attempt, orders.wanted)
    parents = {
        pid: stat for pid in process_tree.all_pids() if (stat := process_tree.stat_of(pid)) is not None
    }
    children: dict[int, list[int]] = {}
    for pid, (_, parent, _) in parents.items():
        children.setdefault(parent, []).append(pid)
    result = []
    for root, rank in sorted(found.items(), key=lambda item: item[1]):
        pids = [root]
        for pid in pids:  # it grows
            pids += sorted(children.get(pid, ()))
        live = [pid for pid in pids if pid in parents and parents[pid][0] not in "ZX"][:PROCESSES]
        if live:
            states = {pid: _STATES.get(parents[pid][0], "waiting") for pid in live}
            result.append(_Rank(rank, tuple(live), states))
    return result


# -- what the kernel shows ---------------------------------------------------------------------------


def _from_kernel(rank: _Rank, why_not: str = "the stacks were not read in time") -> RankStack:
    """State and kernel function of the first process of the rank that does not wait for a child: all that any user may read."""
    where = {pid: _small(f"/proc/{pid}/wchan") for pid in rank.pids}
    # a shell that waits for its child is not where the rank is
    pid = next((pid for pid in rank.pids if where[pid] != "do_wait"), rank.pids[-1])
    name, wchan = _small(f"/proc/{pid}/comm") or f"process {pid}", where[pid]
    place = f"in {name}" + (f", waits in {wchan}" if wchan not in ("", "0") else "")
    state = "stopped" if rank.stopped else rank.states.get(pid, "unknown")
    return RankStack((rank.rank,), state, place, why_not=why_not)


def _small(path: str) -> str:
    try:
        return process_tree.said(path).decode(errors="replace").strip()
    except OSError:
        return ""


# -- stacks ------------------------------------------------------------------------------------------


def _looked_at(ranks: Sequence[_Rank], rules: RuleSet) -> list[RankStack]:
    watched: ProfilerWatch | None = None
    refused: dict[int, str] = {}
    try:
        for rank in ranks:
            try:
                watched = _add(watched, rank)
            except UnidleError as error:
                refused[rank.rank] = error.problem
        if watched is None:
            return [_from_kernel(rank, refused[rank.rank]) for rank in ranks]
        watched.run(LOOK_S)
        profile = watched.take()
    finally:
        if watched is not None:
            watched.close()
    return [
        _from_kernel(rank, refused[rank.rank]) if rank.rank in refused else _stack_of(rank, profile, rules)
        for rank in ranks
    ]


def _add(watched: ProfilerWatch | None, rank: _Rank) -> ProfilerWatch:
    from unidle.scope.tiers import watch

    if watched is None:
        return watch([rank.pids[0]], tier="T2")
    watched.add(rank.pids[0])
    return watched


def _stack_of(rank: _Rank, profile: Profile, rules: RuleSet) -> RankStack:
    sample = _telling(rank, profile, rules)
    if sample is None:
        return _from_kernel(rank, "no stack of it could be read")
    stack = profile.stack(sample.stack)
    category = str(rules.of(stack, sample.state).category)
    place, frames = _place(stack, sample.pid), _frames(stack)
    if category == "data" and (helper := _helper(rank, sample, profile, rules)) is not None:
        shown = profile.stack(helper.stack)
        place += f", whose worker is {_place(shown, helper.pid)}"
        frames = (*frames[-FRAMES_KEPT // 2 :], f"worker {helper.pid}:", *_frames(shown)[-FRAMES_KEPT // 2 :])
    return RankStack((rank.rank,), "stopped" if rank.stopped else category, place, frames)


def _helper(rank: _Rank, sample: Sample, profile: Profile, rules: RuleSet) -> Sample | None:
    """A process of the rank that is at work in the user's own code, for one that waits for its data."""
    for other in profile.samples:
        if other.pid in rank.states and other.pid == other.tid and other.pid != sample.pid:
            stack = profile.stack(other.stack)
            own = any(frame.kind == "python" and is_user_file(frame.file) for frame in stack)
            deepest = next((f for f in reversed(stack) if f.kind == "python"), None)
            if own and deepest is not None and rules.of(stack, other.state).category != "idle":
                return other
    return None


def _telling(rank: _Rank, profile: Profile, rules: RuleSet) -> Sample | None:
    """The stack that explains most of a rank: of its main thread; else of a thread that this one waits for.

    Of several processes the first with Python of the user's own counts, else the first with any, else the last one.
    """
    main: dict[int, Sample] = {}
    others: dict[int, list[Sample]] = {}
    for sample in sorted(profile.samples, key=lambda s: s.ns):
        if sample.pid in rank.states:
            if sample.pid == sample.tid:
                main[sample.pid] = sample
            else:
                others.setdefault(sample.pid, []).append(sample)
    by_pid = [main[pid] for pid in rank.pids if pid in main]
    python = [s for s in by_pid if any(f.kind == "python" for f in profile.stack(s.stack))]
    own = [
        s for s in python if any(f.kind == "python" and is_user_file(f.file) for f in profile.stack(s.stack))
    ]
    chosen = next(iter(own or python or by_pid[-1:]), None)
    if chosen is None or chosen not in python:
        return chosen
    deepest = [f for f in profile.stack(chosen.stack) if f.kind == "python"][-1]
    if not deepest.file.endswith(_JOINS):
        return chosen
    threads = [s for s in reversed(others.get(chosen.pid, [])) if _works_for(profile.stack(s.stack))]
    waits = [s for s in threads if rules.of(profile.stack(s.stack), s.state).category == "collective"]
    return next(iter(waits or threads), chosen)


def _works_for(stack: Sequence[Frame]) -> bool:
    """Whether a thread runs code of the user's own, and is not one that waits for others."""
    python = [frame for frame in stack if frame.kind == "python"]
    return any(is_user_file(f.file) for f in python) and not python[-1].file.endswith(_JOINS)


def _place(stack: Sequence[Frame], pid: int) -> str:
    """``in all_reduce at train.py:40 (main)``, ``at data.py:12 (load), waits in read pipe``, ``in sleep, waits in sleep``."""
    waits = f", waits in {stack[-1].function}" if stack and stack[-1].kind == "wait" else ""
    python = [frame for frame in stack if frame.kind == "python"]
    own = next((k for k in range(len(python) - 1, -1, -1) if is_user_file(python[k].file)), None)
    if not python:
        program = _small(f"/proc/{pid}/comm") or f"process {pid}"
        at = leaf_of(stack)
        function = plain_name(stack[at])[:FRAME_CHARS] if at is not None else ""
        return f"in {function + ' of ' if function else ''}{program}{waits}"
    if own is None:
        own = next((k for k in range(len(python) - 1, -1, -1) if not python[k].file.startswith("<")), -1)
    line = python[own]
    where = f"at {Path(line.file).name}:{line.line} ({short_name(line)})"[:FRAME_CHARS]
    called = _called([short_name(frame) for frame in python[own:][1:]])
    return f"in {called} {where}" if called else f"{where}{waits}"


def _called(names: Sequence[str]) -> str:
    """Of the functions below the user's own line, the one that it means to call: not a wrapper around that."""
    plain = [
        name for name in names if name not in _WRAPPERS and (not name.startswith("_") or name.endswith("__"))
    ]
    return next(iter(plain or names), "")[:FRAME_CHARS]


def _frames(stack: Sequence[Frame]) -> tuple[str, ...]:
    """Python's frames, what native code the deepest of them is in, and what is waited in."""
    last = max((k for k, frame in enumerate(stack) if frame.kind == "python"), default=-1)
    shown = [frame for frame in stack[: last + 1] if frame.kind == "python"]
    shown += [f for f in stack[last + 1 :] if f.kind != "native" or not f.module.startswith("libpython")]
    return tuple(_line(frame) for frame in shown[-FRAMES_KEPT:])


def _line(frame: Frame) -> str:
    if frame.kind == "python":
        room = FRAME_CHARS - len(frame.function[:80]) - 12
        file = frame.file if len(frame.file) <= room else "…" + frame.file[-room:]
        return f"{frame.function[:80]} ({file}:{frame.line})"
    if frame.kind == "wait":
        return f"waits in {frame.function}"[:FRAME_CHARS]
    name = plain_name(frame)[: FRAME_CHARS - 40]
    return f"{name} [{frame.module[:36]}]" if frame.module else name


if __name__ == "__main__":
    sys.exit(main())
