"""Errors of programs in Go, Rust, Java, JavaScript, R, Julia, Perl, Ruby and PHP, as their run times print them."""

from __future__ import annotations

import re
from itertools import takewhile

from ..affixes import without_prefix
from .output_error import OutputError, file_name

_GO_FRAME = re.compile(r"\s+(/\S+\.go):(\d+)(?: |$)").match
_GO_LIBRARY = re.compile(r"/go/src/|/go/pkg/mod/|/libexec/src/|/usr/lib/go").search
_RUST = re.compile(r"thread '[^']*'(?: \(\d+\))? panicked at (?:'(.*)', )?(\S+?):(\d+)(?::\d+)?:?$").match
_JAVA = re.compile(r'Exception in thread "[^"]*" (\S+?)(?:: (.*))?$').match
_JAVA_FRAME = re.compile(r"\s+at (?!java\.|javax\.|jdk\.|sun\.|scala\.)\S+\(([\w$.]+\.\w+):(\d+)\)").match
_NODE = re.compile(r"(?:Uncaught )?((?:[A-Z]\w*)?(?:Error|Exception)(?: \[\w+\])?)(?:: (.*))?$").match
_NODE_FRAME = re.compile(r"\s+at (?:.*\()?(?:file://)?([^():\s][^():]*):(\d+):\d+\)?").match
_R_ERROR = re.compile(r"Error(?: in .*?)?\s*:(?: (.*))?$").match
_JULIA_FRAME = re.compile(r"\s*@ (?:Main|Main\.\S+) (\S+?):(\d+)").match
_JULIA_START = re.compile(r"in expression starting at (\S+?):(\d+)").match
_PERL = re.compile(r"(.+) at (\S+\.(?:pl|pm|t)) line (\d+)\.?$").match
_RUBY = re.compile(r"(\S+\.rb):(\d+):in [`'].*?': (.*) \(([A-Z][\w:]*)\)$").match
_DOTNET_FRAME = re.compile(r"\s+at .* in (\S+):line (\d+)$").match
_FORTRAN = re.compile(r"At line (\d+) of file (\S+)$").match
_RACE = re.compile(r"\s+(/\S+\.go):(\d+) ").match
_PHP = re.compile(r"(?:PHP )?Fatal error:\s+(.*?)(?: in (\S+\.php)(?::| on line )(\d+))?$").match


def go(lines: list[str], k: int, workdir: str) -> OutputError | None:
    line = lines[k]
    at = max(line.find("panic: "), line.find("fatal error: "))
    stack = list(takewhile(lambda one: not one.startswith("panic: "), lines[k + 1 : k + 200]))
    if at < 0 or not any(one.startswith(("goroutine ", "runtime stack:")) for one in stack):
        return None
    where = ""
    for one in stack:
        frame = _GO_FRAME(one)
        if frame is not None and not _GO_LIBRARY(frame[1]):
            where = f"{file_name(frame[1], workdir)}:{frame[2]}"
            break
    return OutputError(k, line[at:], where)


def rust(lines: list[str], k: int, workdir: str) -> OutputError | None:
    found = _RUST(lines[k])
    if found is None:
        return None
    said = found[1] if found[1] is not None else (lines[k + 1] if k + 1 < len(lines) else "")
    return OutputError(k, f"panic: {said}", f"{file_name(found[2], workdir)}:{found[3]}")


def java(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    found = _JAVA(lines[k])
    if found is None:
        return None
    what, where, root = lines[k].partition('" ')[2], "", ""
    for line in lines[k + 1 : k + 200]:
        if line.startswith("Caused by: "):
            root = line[11:]
        elif not line.startswith(("\t", " ")):
            break
        elif not where and (frame := _JAVA_FRAME(line)) is not None:
            where = f"{frame[1]}:{frame[2]}"
    return OutputError(k, f"{what}, from {root}" if root else what, where)


def node(lines: list[str], k: int, workdir: str) -> OutputError | None:
    found = _NODE(lines[k])
    after = lines[k + 1 : k + 40]
    if found is None or not any(line.startswith("    at ") for line in after[:6]):
        return None
    frames = [frame for line in after if (frame := _NODE_FRAME(line)) is not None]
    own = next((f for f in frames if not f[1].startswith("node:") and "node_modules/" not in f[1]), None)
    what = without_prefix(lines[k], "Uncaught ")
    missing = "Cannot find module '/" in what and not any("node_modules/" in line for line in after)
    return OutputError(
        k, what, f"{file_name(own[1], workdir)}:{own[2]}" if own is not None else "", "command" if missing else "error"
    )  # fmt: skip


def r(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    """The error above ``Execution halted``; its text may stand below the call."""
    for at in range(k - 1, max(k - 20, -1), -1):
        found = _R_ERROR(lines[at])
        if found is not None:
            said = "" if found[1] else lines[at + 1].strip()
            return OutputError(at, f"{lines[at].rstrip()} {said}")
    return None


def julia(lines: list[str], k: int, workdir: str) -> OutputError | None:
    after = lines[k + 1 : k + 60]
    if not lines[k].startswith("ERROR: ") or "Stacktrace:" not in after:
        return None
    frame = next((m for line in after if (m := _JULIA_FRAME(line)) is not None), None)
    frame = frame or next((m for line in after if (m := _JULIA_START(line)) is not None), None)
    where = f"{file_name(frame[1], workdir)}:{frame[2]}" if frame is not None else ""
    return OutputError(k, without_prefix(without_prefix(lines[k], "ERROR: "), "LoadError: "), where)


def perl(lines: list[str], k: int, workdir: str) -> OutputError | None:
    """What ``die`` prints, which ``warn`` does too: only where it is the last."""
    found = _PERL(lines[k])
    if found is None or any(line.strip() for line in lines[k + 1 :]):
        return None
    return OutputError(k, found[1], f"{file_name(found[2], workdir)}:{found[3]}")


def ruby(lines: list[str], k: int, workdir: str) -> OutputError | None:
    found = _RUBY(lines[k])
    return (
        None
        if found is None
        else OutputError(k, f"{found[4]}: {found[3]}", f"{file_name(found[1], workdir)}:{found[2]}")
    )


def php(lines: list[str], k: int, workdir: str) -> OutputError | None:
    found = _PHP(lines[k])
    if found is None:
        return None
    where = f"{file_name(found[2], workdir)}:{found[3]}" if found[2] else ""
    return OutputError(k, without_prefix(found[1], "Uncaught "), where)


def dotnet(lines: list[str], k: int, workdir: str) -> OutputError | None:
    _, begins, said = lines[k].partition("Unhandled exception. ")
    frames = [m for line in lines[k + 1 : k + 60] if (m := _DOTNET_FRAME(line)) is not None]
    where = f"{file_name(frames[0][1], workdir)}:{frames[0][2]}" if frames else ""
    return OutputError(k, said, where) if begins else None


def fortran(lines: list[str], k: int, workdir: str) -> OutputError:
    place = _FORTRAN(lines[k - 1]) if k else None
    where = f"{file_name(place[2], workdir)}:{place[1]}" if place is not None else ""
    return OutputError(k, lines[k], where, kind="code")


def go_race(lines: list[str], workdir: str) -> OutputError | None:
    """The first report of Go's race detector. The program continues after it, and exits with code 66."""
    for k, line in enumerate(lines):
        if line == "WARNING: DATA RACE":
            frame = next((m for one in lines[k + 1 : k + 20] if (m := _RACE(f"{one} ")) is not None), None)
            where = f"{file_name(frame[1], workdir)}:{frame[2]}" if frame is not None else ""
            return OutputError(k, "data race", where, kind="code")
    return None
