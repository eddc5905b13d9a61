"""Runs probes so that none of them can hold up the check.

Each runs in a child process, made by ``fork``: call it from a process without other threads (the command line is
one; a controller starts ``unidle check``). Probes that need the same costly thing share a child, one after the
other. A child that gives no answer in time is killed. A child that cannot be killed (it is blocked in the kernel) is
left behind, and the check reports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from unidle.probe.check.model import Absent, Check, Context, NodeReport, Outcome, Probe, ProbeResult, unknown

_TOGETHER: Final = 8  # children that load nothing, at the same time
_LET_GO_S: Final = 1.0  # after SIGKILL, that a child may be blocked in the kernel before it counts as stuck
_END_S: Final = 20.0  # the same where it is not blocked: a busy machine lets it run late
_PR_SET_PDEATHSIG: Final = 1


@dataclass(slots=True)
class _Child:
    """A process that runs ``probes`` in order; ``done`` of them have answered."""

    pid: int
    pipe: int
    probes: Sequence[Probe]
    deadline: float
    done: int = 0
    text: bytes = b""

    @property
    def uses(self) -> frozenset[str]:
        return frozenset().union(*(probe.uses for probe in self.probes))


@dataclass(slots=True)
class _Run:
    """The state of one check."""

    context: Context
    limit_s: float | None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    children: dict[int, _Child] = field(default_factory=dict)


def check_node(context: Context, probes: Iterable[Probe], limit_s: float | None = None) -> NodeReport:
    """All probes' answers, in their order. ``limit_s`` replaces each probe's own time limit."""
    began = time.monotonic()
    wanted = list(probes)
    run = _Run(context, limit_s)
    try:
        _all(run, [group for group in _groups(wanted) if not _uses(group)])
        _all(run, [group for group in _groups(wanted) if _uses(group)])
    finally:
        for child in list(run.children.values()):
            _kill(run, child)
    checks: list[Check] = []
    absent: list[tuple[str, str]] = []
    for probe in wanted:
        outcome = run.outcomes[probe.name]
        if isinstance(outcome, Absent):
            absent.append((probe.name, outcome.because))
        else:
            checks.extend(outcome.checks)
    return NodeReport(context.node, tuple(checks), tuple(absent), time.monotonic() - began)


def _groups(probes: Sequence[Probe]) -> Iterator[list[Probe]]:
    """Probes that share a process: the same need, the same load or none."""
    shared: dict[tuple[str, bool], list[Probe]] = {}
    for probe in probes:
        if probe.needs:
            shared.setdefault((probe.needs, bool(probe.uses)), []).append(probe)
        else:
            shared[probe.name, bool(probe.uses)] = [probe]
    return iter(shared.values())


def _uses(group: Sequence[Probe]) -> frozenset[str]:
    return frozenset().union(*(probe.uses for probe in group))


def _all(run: _Run, waiting: list[list[Probe]]) -> None:
    """Start what does not disturb what runs, and take answers, until all is done."""
    with selectors.DefaultSelector() as selector:
        while waiting or run.children:
            for group in list(waiting):
                busy = frozenset().union(*(child.uses for child in run.children.values()))
                if len(run.children) < _TOGETHER and not (_uses(group) & busy):
                    waiting.remove(group)
                    child = _start(run, group)
                    selector.register(child.pipe, selectors.EVENT_READ, child)
            left = min(child.deadline for child in run.children.values()) - time.monotonic()
            for key, _ in selector.select(max(left, 0.0)):
                child = key.data
                is_open = _take(run, child)
                if not is_open or child.done == len(child.probes):  # what it started may hold the pipe
                    selector.unregister(child.pipe)
                    _reap(run, child)
            now = time.monotonic()
            for child in [child for child in run.children.values() if child.deadline <= now]:
                selector.unregister(child.pipe)
                _late(run, child)


def _limit(run: _Run, probe: Probe) -> float:
    return run.limit_s if run.limit_s is not None else probe.limit_s(run.context)


def _start(run: _Run, probes: Sequence[Probe]) -> _Child:
    out, into = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        _child(run.context, probes, into, parent)
    os.close(into)
    os.set_blocking(out, False)
    child = _Child(pid, out, probes, time.monotonic() + _limit(run, probes[0]))
    run.children[pid] = child
    return child


def _child(context: Context, probes: Sequence[Probe], into: int, parent: int) -> NoReturn:
    """In the child: answer after answer, one JSON line each."""
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        for probe in probes:
            outcome = answer(probe, context)
            line = json.dumps([isinstance(outcome, Absent), list(outcome)]) + "\n"
            rest = memoryview(line.encode())
            while rest:
                rest = rest[os.write(into, rest) :]
    finally:
        os._exit(0)


def answer(probe: Probe, context: Context) -> Outcome:
    """The probe's answer; what it raises is something that could not be determined."""
    try:
        return probe.run(context)
    except Exception as error:  # a probe of a broken machine fails in ways that nobody foresaw
        text = str(error).strip().splitlines()
        because = f"the probe failed: {type(error).__name__}" + (f": {text[0]}" if text else "")
        return ProbeResult((unknown(probe.name, because),))


def _take(run: _Run, child: _Child) -> bool:
    """Read what is there; False when the child has closed its end."""
    try:
        part = os.read(child.pipe, 1 << 16)
    except BlockingIOError:
        return True
    child.text += part
    *lines, child.text = child.text.split(b"\n")
    for line in lines:
        absent, values = json.loads(line)
        probe = child.probes[child.done]
        found = Absent(*values) if absent else ProbeResult(tuple(Check(*check) for check in values[0]))
        run.outcomes[probe.name] = found
        child.done += 1
        if child.done < len(child.probes):
            child.deadline = time.monotonic() + _limit(run, child.probes[child.done])
    return bool(part)


def _reap(run: _Run, child: _Child) -> None:
    """The child has answered all, or has closed its pipe: it ends, or has died on the way."""
    del run.children[child.pid]
    os.close(child.pipe)
    _group_kill(child.pid)
    status = _wait(child.pid)
    for k, probe in enumerate(child.probes[child.done :]):
        how = (
            f"signal {os.WTERMSIG(status)}" if status is not None and os.WIFSIGNALED(status) else "no answer"
        )
        because = f"the probe's process ended by {how}" if k == 0 else f"not run: {child.probes[child.done].name} ended its process"  # fmt: skip
        run.outcomes[probe.name] = ProbeResult((unknown(probe.name, because),))


def _late(run: _Run, child: _Child) -> None:
    """The probe that runs now is late: kill it, and say whether the kernel let go of it."""
    late = child.probes[child.done]
    limit = _limit(run, late)
    state = _state(child.pid)
    gone = _kill(run, child)
    says = f"no answer within {limit:g} s"
    if gone:
        check = unknown(late.name, f"{says}; its process was stopped")
    else:
        says += f", but process {child.pid} cannot be killed (state {state}) and is still there"
        check = Check(late.name, False, None, "", None, says)
    run.outcomes[late.name] = ProbeResult((check,))
    for probe in child.probes[child.done + 1 :]:
        run.outcomes[probe.name] = ProbeResult((unknown(probe.name, f"not run: {late.name} did not answer"),))


def _kill(run: _Run, child: _Child) -> bool:
    """End the child and what it started; False where it stays."""
    del run.children[child.pid]
    os.close(child.pipe)
    _group_kill(child.pid)
    return _wait(child.pid) is not None


def _group_kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _wait(pid: int) -> int | None:
    """The child's status; None where it does not end even when killed."""
    began = ran = time.monotonic()
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        now, is_blocked = time.monotonic(), _state(pid) == "D"
        ran = ran if is_blocked else now
        if (is_blocked and now - ran >= _LET_GO_S) or now - began >= _END_S:
            return None
        time.sleep(0.005)


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "?"
