"""Stacks as tools write them, in one form, and what is judged of them: do they reach the root, do frames have names, do PyTorch's frames
stay above MKL's, which come without unwind tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOTS = frozenset({"_start", "clone3", "__clone3", "__clone", "clone", "start_thread", "_dl_start"})
_OFFSET = re.compile(r"\+(0x[0-9a-f]+|\d+)$")
_START_BYTES = 64  # it is shorter
_ADDRESS = re.compile(r"^0x|\+0x[0-9a-f]+$")
_OF_TORCH = re.compile(r"\b(at|c10|torch)::|^THP")


@dataclass(frozen=True, slots=True)
class Stack:
    """Function names, root first, without those of the kernel; nothing where there is no name."""

    functions: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Judged:
    """Percent; of nothing, nothing."""

    stacks: int
    rooted: float | None
    named: float | None
    over_mkl: float | None  # of the stacks in MKL, those with PyTorch's frames too
    in_mkl: int


def judged(stacks: Iterable[Stack]) -> Judged:
    """All figures of a tool's stacks."""
    total = rooted = frames = named = in_mkl = kept = 0
    for one in stacks:
        if not one.functions:
            continue
        total += one.count
        rooted += one.count * (one.functions[0] in ROOTS)
        frames += one.count * len(one.functions)
        named += one.count * sum(map(bool, one.functions))
        if any(name.startswith("mkl_") for name in one.functions):
            in_mkl += one.count
            kept += one.count * any(map(_OF_TORCH.search, one.functions))
    return Judged(total, _percent(rooted, total), _percent(named, frames), _percent(kept, in_mkl), in_mkl)


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def of_profile(profile: Mapping[str, Any]) -> list[Stack]:
    """Of unidle's JSON: what was on a CPU, as the others see only that."""
    frames = [(frame[0], "" if _ADDRESS.search(frame[1]) else frame[1]) for frame in profile["frames"]]
    out = []
    for _pid, _tid, stack, state, count, _ns in profile["samples"]:
        if state == "on" and stack is not None and stack >= 0:
            names = [frames[n][1] for n in profile["stacks"][stack] if frames[n][0] != "kernel"]
            out.append(Stack(tuple(names), count))
    return out


def of_perf(script: str) -> list[Stack]:
    """Of ``perf script -F tid,ip,sym,dso``: a line with the thread, then one line a frame, leaf first."""
    out = []
    for part in script.split("\n\n"):
        rows = [line.split(maxsplit=1)[1] for line in part.splitlines()[1:] if len(line.split()) > 1]
        user = [row.rpartition(" (")[0] for row in rows if not row.endswith("([kernel.kallsyms])")]
        names = ["" if name.startswith("[unknown]") else _OFFSET.sub("", name) for name in user]
        out.append(Stack(tuple(reversed(names))))
    return out


def of_spy(raw: str) -> list[Stack]:
    """Of py-spy's raw format: ``root (file);...;leaf (file) count``. The libc frame below ``<module>`` is none of the program's."""
    out = []
    for line in raw.splitlines():
        path, _, count = line.rpartition(" ")
        if path and count.isdecimal():
            names = [frame.rpartition(" (")[0] or frame for frame in _frames(path)]
            out.append(Stack(tuple("" if name.startswith("0x") else name for name in names), int(count)))
    return out


def _frames(path: str) -> Sequence[str]:
    """Frames end with a file in brackets, which a semicolon in a C++ name does not follow."""
    return re.split(r"(?<=\));", path)


def judged_addresses(text: str, entry: int) -> Judged:
    """Of bpftrace's ``@[ustack] = count()`` without names: ``@[``, an address a line, leaf first, ``]: count``. A stack whose last address is in
    the program's first function, which is at ``entry``, reaches the root."""
    total = rooted = 0
    for body, count in re.findall(r"^@\[\n(.*?)^\]: (\d+)$", text, re.MULTILINE | re.DOTALL):
        addresses = [int(line, 16) for line in body.split() if line.startswith("0x")]
        total += int(count)
        rooted += int(count) * (bool(addresses) and entry <= addresses[-1] < entry + _START_BYTES)
    return Judged(total, _percent(rooted, total), None, None, 0)


def entry_of(pid: int) -> int:
    """Where a process's program begins: the address of its ``_start``."""
    program = str(Path(f"/proc/{pid}/exe").readlink())
    with Path(f"/proc/{pid}/exe").open("rb") as file:
        head = file.read(32)
    entry = int.from_bytes(head[24:32], "little")
    shared = head[16:18] == b"\x03\x00"  # position independent: moved by where it was mapped
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    base = next(int(line.partition("-")[0], 16) for line in maps if line.endswith(program))
    return base + entry if shared else entry
