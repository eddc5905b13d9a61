"""Folded stacks: ``root;caller;callee 123``, one line per stack, as flamegraph.pl, inferno and speedscope read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, get_args

from unidle.errors import BadInput
from unidle.scope.export import names
from unidle.scope.export.encode import uncollected
from unidle.scope.model import Profile
from unidle.scope.samples import STATE_ORDER

Weight = Literal["us", "samples", "live_bytes", "allocated_bytes"]
StateFrame = Literal["leaf", "root", "none"]

_ESCAPES: Final = {"\\": "\\\\", ";": "\\x3b", "\n": "\\n", "\r": "\\r"}
_ESCAPED: Final = re.compile(r"[\\;\n\r]")
_UNESCAPE: Final = re.compile(r"\\(\\|x3b|x23|n|r)")


def escape(frame: str) -> str:
    """A frame that neither ends itself, nor its line, nor looks like a comment; :func:`unescape` takes it back."""
    text = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], frame)
    return "\\x23" + text[1:] if text.startswith("#") else text


def unescape(frame: str) -> str:
    plain = {"\\": "\\", "x3b": ";", "x23": "#", "n": "\n", "r": "\r"}
    return _UNESCAPE.sub(lambda found: plain[found[1]], frame)


@uncollected
def write(
    profile: Profile,
    *,
    weight: Weight = "us",
    states: StateFrame = "leaf",
    threads: bool = True,
    lines: bool = True,
) -> bytes:
    """The profile as UTF-8 text.

    ``weight``: microseconds, numbers of samples, or bytes of memory. ``states``: where the thread's state stands as a
    frame of its own (``[off CPU]``). ``threads``: process (or rank) and thread are the first two frames. ``lines``:
    frames name their source line; without, the lines of a function count together. Comments (``# name: "value"``)
    carry the quality; readers skip them because no number ends them. Microseconds are rounded so that the sum is kept.
    """
    for field, value, known in (("weight", weight, Weight), ("states", states, StateFrame)):
        if value not in get_args(known):
            raise BadInput(
                "is unknown", field=field, value=value, remedy=f"one of {', '.join(get_args(known))}"
            )
    sums: dict[str, int] = {}
    for stack, amount in _rows(profile, weight, states, threads, lines):
        sums[stack] = sums.get(stack, 0) + amount
    header = [f'# {name}: "{_quoted(value)}"' for name, value in names.quality(profile).items()]
    header.insert(0, f'# unidle scope, weights: "{"microseconds" if weight == "us" else weight}"')
    body = (f"{stack} {value}" for stack, value in _whole(sums, 1000 if weight == "us" else 1))
    return "".join(f"{line}\n" for line in (*header, *body)).encode("utf-8", "backslashreplace")


def _quoted(value: str) -> str:
    return value.replace('"', "'")


def _rows(
    profile: Profile, weight: Weight, states: StateFrame, threads: bool, lines: bool
) -> Iterator[tuple[str, int]]:
    frames = [escape(names.label(frame, lines=lines)) for frame in profile.frames]
    stacks = [";".join([frames[n] for n in stack]) for stack in profile.stacks]
    processes = {pid: escape(text) for pid, text in names.process_labels(profile).items()}
    if weight in ("live_bytes", "allocated_bytes"):
        for held in profile.memory:
            value = held.live_bytes if weight == "live_bytes" else held.allocated_bytes
            root = (processes[held.pid], escape(f"[{names.visible(held.device)}]")) if threads else ()
            yield _joined(*root, stacks[held.stack]), value
        return
    known = {
        (pid, tid): escape(names.thread_label(tid, name))
        for pid, of_process in names.threads_of(profile).items()
        for tid, name in of_process.items()
    }
    shown = [f"[{names.STATES[state]}]" for state in STATE_ORDER]
    for pid, tid, stack, state, count, ns in names.totals(profile):
        parts = [processes[pid], known[pid, tid]] if threads else []
        where = "[on a device]" if tid < 0 else shown[state]  # a stream of a device is no thread
        parts += [where, stacks[stack]] if states == "root" else [stacks[stack]]
        parts += [where] if states == "leaf" else []
        yield _joined(*parts), ns if weight == "us" else count


def _joined(*parts: str) -> str:
    return ";".join(filter(None, parts)) or "[no frames]"


def _whole(sums: dict[str, int], unit: int) -> Iterator[tuple[str, int]]:
    """Whole units of each sum. What rounding takes from one is carried to the next; what comes to nothing is left out."""
    carried = 0
    for stack, value in sums.items():
        units = (value + carried + unit // 2) // unit
        carried += value - units * unit
        if units > 0:
            yield stack, units


def read(told: bytes) -> dict[tuple[str, ...], int]:
    """The stacks of a folded file and their weights. Raises :class:`BadInput` at a line that is none."""
    found: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(told.decode("utf-8").split("\n"), 1):
        if not line or line.startswith("# "):
            continue
        stack, space, value = line.rpartition(" ")
        if not space or not value.isdecimal():
            raise BadInput("is no stack with a number", field=f"line {number}", value=line)
        key = tuple(unescape(frame) for frame in stack.split(";"))
        found[key] = found.get(key, 0) + int(value)
    return found
