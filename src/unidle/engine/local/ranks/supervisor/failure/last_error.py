"""From the end of a rank's output to the error that ended it."""

from __future__ import annotations

import re

from ..affixes import without_prefix
from .formatted import unescaped
from .native import device_assert, errors, last_line
from .output_error import WHAT_CHARACTERS, OutputError, shortened
from .tracebacks import HEADER, exceptions, only_reports, pick

LINES = 10
LINE_CHARACTERS = 300
_PARSED_CHARACTERS = 2000  # of one line
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
AT_END = 40  # lines after an exception that ended a program, at most
_FEW = 5  # other lines: an excuse, a farewell
_STEP = re.compile(
    r"\b(?:step|iter(?:ation)?|epoch|batch|update)s?\b\W{0,3}\d|\bloss\b\W{0,3}\d", re.IGNORECASE
).search
_BAR = re.compile(r"\d%\||\d ?(?:it|s)/(?:it|s)\b").search
_FAREWELL = re.compile(r"\s*wandb: ").match  # a summary when the process ends, whatever ended it


def read_failure(
    out: bytes, err: bytes, both: bytes, code: int, workdir: str = "", cut: tuple[bool, bool] = (False, False)
) -> dict[str, object]:
    """Why a process that ended with ``code`` failed, as the exit mark's ``last`` (``unidle.events.marks.LastOutput``).

    ``out`` and ``err`` are the ends of its two streams, ``both`` of the two as they came; ``cut``: whether
    lines are missing before ``out`` and ``err``.
    """
    streams = _lines(err, cut[1]), _lines(out, cut[0])
    found, lines = _choose(*streams, _lines(both, cut=False), code, workdir)
    last: dict[str, object] = {}
    if found is not None:
        last = {"what": found.what, "where": found.where, "kind": found.kind, "sort": found.sort}
        if found.symptom:
            last["symptom"] = True
    if shown := _shown(_last_lines(both), found, lines):
        last["lines"] = shown
    return last


def _shown(last: list[str], found: OutputError | None, lines: list[str]) -> list[str]:
    """The last lines; where the error is not among them, as above a launcher's table, those of the error."""
    if found is None or found.sort == "line" or found.at >= len(lines):
        return last
    if _printable(lines[found.at]) in last:
        return last
    mine = [line for line in lines[: found.at + 1] if line.strip()] if found.closes else lines[found.at :]
    mine = mine[-LINES:] if found.closes else [line for line in mine if line.strip()][:LINES]
    return [_printable(line) for line in mine]


def _choose(
    err: list[str], out: list[str], both: list[str], code: int, workdir: str
) -> tuple[OutputError | None, list[str]]:
    """The first cause that either stream has, standard error first; else a symptom; else a line. And its stream."""
    strong: list[tuple[OutputError, list[str]]] = []
    rest: list[list[str]] = []  # without a traceback that did not end it
    for lines in (err, out):
        raised = exceptions(lines, workdir)
        if raised and went_on(raised[-1].at, lines, both, code):
            rest.append(lines[raised[-1].at + 1 :])
            raised = []
        else:
            rest.append(lines)
        if (one := _strongest(lines, raised, code, workdir)) is not None:
            strong.append((one, lines))
    known = [each for each in strong if each[0].sort != "line"]
    for each in (*(each for each in known if not each[0].symptom), *known, *strong):
        return each
    return last_line(rest[0], any_line=True) or last_line(rest[1], any_line=False), []


def _strongest(lines: list[str], ended: list[OutputError], code: int, workdir: str) -> OutputError | None:
    raised = pick(ended)
    others = errors(lines, code, workdir)
    causes = [one for one in others if not one.symptom and one.sort != "line"]
    if raised is not None and not raised.symptom:
        before = next((one for one in causes if _explains(one, raised)), None)
        if before is not None:
            return before
        return (
            _with_child(raised, lines) if "CalledProcessError" in raised.what else _with_detail(raised, lines)
        )
    for wanted in (causes, [raised] if raised else [], others):
        if wanted:
            return wanted[0]
    return None


def _explains(one: OutputError, raised: OutputError) -> bool:
    """Whether another program's error explains more than the exception, which only reports that program's exit."""
    return only_reports(raised) and (one.at < raised.at or "ChildFailedError" in raised.what)


def _with_child(raised: OutputError, lines: list[str]) -> OutputError:
    """Name the child's own last error before the exception that only reports the child's exit code."""
    if not only_reports(raised):
        return raised
    starts = [k for k, line in enumerate(lines[: raised.at]) if HEADER in line]
    child = last_line(lines[: starts[-1]], any_line=False) if starts else None
    if child is not None:
        cause, name = shortened(child.what, 240), without_prefix(raised.what, "subprocess.")
        raised.what = shortened(f"{cause} (then {shortened(name, 150)})", WHAT_CHARACTERS)
        raised.kind = child.kind if child.kind != "unknown" else raised.kind
    return raised


def _with_detail(raised: OutputError, lines: list[str]) -> OutputError:
    if "device-side assert" in raised.what and (said := device_assert(lines)):
        raised.what = shortened(f"{raised.what}: {said}", 400)
    return raised


def _lines(data: bytes, cut: bool) -> list[str]:
    """Whole lines without colours; what a carriage return overwrote are lines of their own."""
    if cut:
        data = data[data.find(b"\n") + 1 :]
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode("utf-8", "replace")
    if "(most recent call last):\\n" in text:
        text = "\n".join(one for line in text.split("\n") for one in unescaped(line))
    return [line[:_PARSED_CHARACTERS].rstrip() for line in text.split("\n")]


def _last_lines(data: bytes) -> list[str]:
    lines = [line for line in _lines(data, cut=False) if line.strip()]
    return [_printable(line)[:LINE_CHARACTERS] for line in lines[-LINES:]]


def _printable(line: str) -> str:
    line = line.expandtabs(4)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"


def went_on(at: int, lines: list[str], both: list[str], code: int) -> bool:
    """Whether the exception at ``lines[at]`` was handled, by what was printed after it.

    ``both`` are the lines of the two streams as they came. Python ends with code 1 after an unhandled
    exception. With that code, the exception counts as handled only if its stream has later lines, and if training
    or other output continued before the last of them.
    """
    own = [line for line in lines[at + 1 :] if line.strip() and not _FAREWELL(line)]
    if code == 1:
        own = [line for line in own if not _BAR(line)]  # a bar is drawn once more when it is closed
    after = [line for line in _after(lines[at], both) if not _FAREWELL(line)]
    if code != 1:
        others = _without(after, own)
        return len(own) > AT_END or len(others) > _FEW or any(_STEP(one) or _BAR(one) for one in own + others)
    if not own:
        return False
    last = len(after) - 1 - after[::-1].index(own[-1]) if own[-1] in after else 0
    between = [line for line in _without(after[:last], own) if not _BAR(line)]
    return len(between) > _FEW or any(map(_STEP, between)) or any(map(_STEP, own[:-1]))


def _after(line: str, both: list[str]) -> list[str]:
    """What came after the last such line."""
    for k in range(len(both) - 1, -1, -1):
        if both[k] == line:
            return [one for one in both[k + 1 :] if one.strip()]
    return []


def _without(lines: list[str], taken: list[str]) -> list[str]:
    """Without those of ``taken``, each as often as it is there."""
    left: dict[str, int] = {}
    for line in taken:
        left[line] = left.get(line, 0) + 1
    found = []
    for line in lines:
        if left.get(line, 0):
            left[line] -= 1
        else:
            found.append(line)
    return found
