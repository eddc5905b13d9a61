"""How stacks, threads and the quality of a profile are named in files that other tools read."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from unidle.scope.model import Frame, Profile, Quality, State
from unidle.scope.samples import STATE_ORDER, Rows, rows_of

__all__ = ["STATE_ORDER"]

STATES: Final[dict[State, str]] = {"on": "on CPU", "off": "off CPU", "runq": "waiting for a CPU"}
LONGEST_COMMAND: Final = 60
_THREAD: Final = attrgetter("pid", "tid")

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """The text with every character that shows nothing (controls, directions, half surrogates) written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def function_name(frame: Frame) -> str:
    """The function alone, without its place. Waits stand in brackets: they are no functions."""
    name = visible(frame.function) or "[unknown]"
    return f"[{name}]" if frame.kind == "wait" and not name.startswith("[") else name


def place(frame: Frame, *, lines: bool = True) -> str:
    """``train.py:12``, ``libtorch_cpu.so``, ``kernel``, or nothing."""
    if frame.kind == "wait":
        return ""
    if frame.kind == "kernel":
        return "kernel"
    name = visible((frame.file or frame.module).rpartition("/")[2])
    return f"{name}:{frame.line}" if name and lines and frame.line and frame.file else name


def label(frame: Frame, *, lines: bool = True) -> str:
    """One frame as one text: ``step (train.py:12)``, ``at::mm (libtorch_cpu.so)``, ``[futex]``."""
    where = place(frame, lines=lines)
    return f"{function_name(frame)} ({where})" if where else function_name(frame)


def process_labels(profile: Profile) -> dict[int, str]:
    """By process number: ``rank 0 (pid 41)`` or ``python train.py (pid 41)``. Every number that occurs has one."""
    told = {process.pid: process for process in profile.processes}
    labels = {}
    for pid in sorted(told.keys() | threads_of(profile).keys() | {held.pid for held in profile.memory}):
        process = told.get(pid)
        if process is None:
            labels[pid] = f"process {pid}"
        elif process.rank is not None:
            labels[pid] = f"rank {process.rank} (pid {pid})"
        else:
            command = visible(process.command)
            if len(command) > LONGEST_COMMAND:
                command = command[: LONGEST_COMMAND - 1] + "…"
            labels[pid] = f"{command} (pid {pid})" if command else f"process {pid}"
    return labels


def threads_of(profile: Profile) -> dict[int, dict[int, str]]:
    """By process and thread number the thread's name. Threads that only a sample, span or call names are there too."""
    found: dict[int, dict[int, str]] = {}
    for rows in (profile.samples, profile.spans, profile.calls):
        for pid, tid in dict.fromkeys(map(_THREAD, rows)):
            found.setdefault(pid, {})[tid] = ""
    for thread in profile.threads:
        found.setdefault(thread.pid, {})[thread.tid] = visible(thread.name)
    return found


def thread_label(tid: int, name: str) -> str:
    return f"{name} (tid {tid})" if name else f"thread {tid}"


def ranks_of(profile: Profile) -> dict[int, int]:
    """By process number the rank, of those that have one."""
    return {process.pid: process.rank for process in profile.processes if process.rank is not None}


def totals(profile: Profile) -> Rows:
    """Samples and nanoseconds by process, thread, stack and state: a row for each, in the order first seen."""
    return rows_of(profile.samples).summed()


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3g} %"


def _share(told: Quality, value: float, digits: int) -> str:
    return f"{value:.{digits}f} %" if told.samples else "no samples"


def quality(profile: Profile) -> Mapping[str, str]:
    """The header that every file carries: how far its figures can be trusted, each fact as a short text."""
    told = profile.quality
    first = told.first_sample_ns
    facts = {
        "tier": profile.tier,
        "window": f"{profile.seconds:.3f} s at {profile.hz} Hz",
        "samples": f"{told.samples:,}",
        "drops": f"{told.drops:,}",
        "spans dropped": f"{told.spans_dropped:,}",
        "rooted": _share(told, told.rooted_pct, 2),
        "symbolised": _share(told, told.symbolised_pct, 2),
        "merge mismatch": _share(told, told.merge_mismatch_pct, 3),
        "overhead in the kernel": _percent(told.bpf_cpu_pct),
        "overhead of the agent": _percent(told.agent_cpu_pct),
        "first complete sample after": "not measured" if first is None else f"{first / 1e6:.1f} ms",
        "misses": "; ".join(map(visible, profile.misses)) or "nothing",
    }
    if told.notes:
        facts["notes"] = "; ".join(map(visible, told.notes))
    return facts


def quality_line(profile: Profile) -> str:
    """:func:`quality` as one line, for formats that have room for one text only."""
    return "; ".join(f"{name}: {value}" for name, value in quality(profile).items())
