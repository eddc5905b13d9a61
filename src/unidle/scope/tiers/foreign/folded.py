"""Folded stacks, one a line: of py-spy (``record -f raw``), of austin 3, and of any other tool.

py-spy writes ``function (file:line);...`` and counts samples; austin writes ``P pid;T interpreter:tid;file:function:line;...``
and microseconds, in full mode with a flag for an idle thread and bytes, under a header (https://github.com/P403n1x87/austin).
"""

from __future__ import annotations

import re
from typing import Final

from unidle.errors import BadInput
from unidle.scope.model import Frame, State
from unidle.scope.tiers.foreign.builder import Builder
from unidle.scope.tiers.foreign.source import Stream, damaged

_AUSTIN: Final = re.compile(
    r"P(-?\d{1,18});T(?:(-?\d{1,18}):)?(0x[0-9a-f]{1,15}|\d{1,15})(?:;(.*))? (\d{1,15})(?:,([01]),(-?\d{1,18}))?",
    re.DOTALL,
)
_LINE: Final = re.compile(r"(.+) (\d{1,18})(?:\.0+)?", re.DOTALL)
_PYTHON: Final = re.compile(r"(.+) \(([^()]+?):(\d{1,9})\)", re.DOTALL)
_NATIVE: Final = re.compile(r"(.+) \(([^()]+)\)", re.DOTALL)
_PROCESS: Final = re.compile(r"process (\d{1,9}):\"?(.*?)\"?", re.DOTALL)
_THREAD: Final = re.compile(r"thread \((0x[0-9a-fA-F]{1,15}|\d{1,15})\)(?:: (.*))?", re.DOTALL)
ASSUMED_HZ: Final = 100


def is_austin(head: bytes) -> bool:
    """Whether a file begins as one of austin 3."""
    return head.startswith(b"# austin: ") or _AUSTIN.fullmatch(_first(head)) is not None


def is_folded(head: bytes) -> bool:
    """Whether the first line could be a folded stack."""
    first = _first(head)
    return _LINE.fullmatch(first) is not None and not first.startswith("#")


def _first(head: bytes) -> str:
    return head.split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")


def frame_of(text: str) -> Frame:
    """A frame as py-spy writes it: ``f (file.py:3)`` is Python, ``f (lib.so)`` native."""
    if told := _PYTHON.fullmatch(text):
        python = told[2].endswith((".py", ">")) or "." not in told[2]
        return Frame("python" if python else "native", told[1], told[2], int(told[3]))
    if told := _NATIVE.fullmatch(text):
        return Frame("native", told[1], module=told[2].rsplit("/", 1)[-1])
    return Frame("native", text)


def thread_number(text: str) -> int:
    """Hexadecimal after ``0x``, otherwise decimal, also with zeros before it."""
    return int(text, 16) if text.startswith("0x") else int(text)


def thread_of(frames: list[str]) -> tuple[int, int, str, str, list[str]]:
    """Takes the process and the thread that py-spy puts at the root: pid, tid, command, name, and what is left."""
    pid, tid, command, name = 0, 0, "", ""
    left = frames
    if left and (told := _PROCESS.fullmatch(left[0])):
        pid, command, left = int(told[1]), told[2], left[1:]
    if left and (told := _THREAD.fullmatch(left[0])):
        tid, name, left = thread_number(told[1]), told[2] or "", left[1:]
    return pid, tid if tid < 2**62 else 0, command, name, left


def read_folded(stream: Stream) -> Builder:
    """Read counts of samples. The file has no times, so 10 ms per sample are assumed, and a note reports that."""
    to = Builder("folded stacks (py-spy raw or of its form)", hz=ASSUMED_HZ)
    for number, line, _ in stream.lines():
        if not line.strip():
            continue
        told = _LINE.fullmatch(line.decode(errors="replace"))
        if told is None:
            raise damaged(stream.name, f"line {number} is no stack with a count")
        pid, tid, command, name, left = thread_of(told[1].split(";"))
        count = int(told[2])
        stack = to.stacks.of(frame_of(text) for text in left)
        to.sample(pid, tid, stack, count * (10**9 // ASSUMED_HZ), count=count)
        if command:
            to.commands[pid] = command
        if name:
            to.names[pid, tid] = name
    to.notes.append(
        f"counts of samples without a rate: {ASSUMED_HZ} a second are assumed; shares do not depend on it"
    )
    to.misses += [
        "samples have no times: there is no time line, and the file cannot be aligned",
        "samples do not show whether a thread ran or waited",
    ]
    return to


def read_austin(stream: Stream) -> Builder:
    """Raises :class:`BadInput` for its memory mode, which counts bytes and not time."""
    to = Builder("austin")
    mode, interval = "", 0
    for number, line, _ in stream.lines():
        text = line.decode(errors="replace")
        if text.startswith("# "):
            key, _, value = text[2:].partition(": ")
            mode = value if key == "mode" else mode
            interval = int(value[:15]) if key == "interval" and value.isdecimal() else interval
            if key == "mode" and value not in {"wall", "cpu", "full"}:
                raise BadInput(
                    "counts memory and not time",
                    field=f"{stream.name}: mode",
                    value=value,
                    remedy="run austin without -m",
                )
            continue
        if not text.strip():
            continue
        told = _AUSTIN.fullmatch(text)
        if told is None:
            raise damaged(stream.name, f"line {number} is no sample of austin")
        _austin_sample(to, told)
    to.hz = round(1e6 / interval) if interval else 0
    if mode == "cpu":
        to.misses.append("austin's CPU mode: only threads that ran were sampled")
    elif mode != "full":
        to.misses.append("samples do not show whether a thread ran or waited (austin -f shows it)")
    to.misses += [
        "Python frames only: no native code, no kernel",
        "samples have no times: there is no time line, and the file cannot be aligned",
    ]
    return to


def _austin_sample(to: Builder, told: re.Match[str]) -> None:
    pid, tid = int(told[1]), thread_number(told[3])
    frames = []
    for text in (told[4] or "").split(";"):
        file, _, rest = text.partition(":") if text.count(":") < 3 else _windows(text)
        function, _, line = rest.rpartition(":")
        if function and line.isdecimal():
            frames.append(Frame("python", function, file, min(int(line[:10]), 2**31 - 1)))
        elif text:
            frames.append(Frame("python", text))
    state: State = "off" if told[6] == "1" else "on"
    # A thread without Python frames is still one that was seen.
    stack = to.stacks.of(frames or [Frame("native", "no Python frame")])
    to.sample(pid, tid, stack, int(told[5]) * 1000, state=state)


def _windows(text: str) -> tuple[str, str, str]:
    """``file:function:line`` with further colons in the file or the function: the last two are the separators."""
    head, _, line = text.rpartition(":")
    file, _, function = head.rpartition(":")
    return file, ":", f"{function}:{line}"
