"""From the end of a rank's output to the error that ended it."""

from __future__ import annotations

import re

from .found import Found, shortened
from .native import device_assert, errors, last_line
from .tracebacks import exceptions, pick

LINES = 10
LINE_CHARACTERS = 300
_PARSED_CHARACTERS = 2000  # of one line
_AT_END = 40  # lines after an exception that ended a program, at most
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")


def read_failure(
    out: bytes, err: bytes, both: bytes, code: int, workdir: str = "", cut: tuple[bool, bool] = (False, False)
) -> dict[str, object]:
    """Why a process that ended with ``code`` failed, as the exit mark's ``last`` (``unidle.events.marks.LastOutput``).

    ``out`` and ``err`` are the ends of its two streams, ``both`` of the two as they came; ``cut``: whether
    lines are missing before ``out`` and ``err``.
    """
    found = _choose(_lines(err, cut[1]), _lines(out, cut[0]), code, workdir)
    last: dict[str, object] = {}
    if found is not None:
        last = {"what": found.what, "where": found.where, "kind": found.kind, "sort": found.sort}
        if found.symptom:
            last["symptom"] = True
    if lines := _last_lines(both):
        last["lines"] = lines
    return last


def _choose(err: list[str], out: list[str], code: int, workdir: str) -> Found | None:
    """The first cause that either stream has, standard error first; else a symptom; else a line."""
    strong = [one for lines in (err, out) if (one := _strongest(lines, code, workdir)) is not None]
    causes = [one for one in strong if not one.symptom and one.sort != "line"]
    if causes:
        return causes[0]
    lines = [one for one in strong if one.sort == "line"]
    symptoms = [one for one in strong if one.symptom and one.sort != "line"]
    if symptoms:
        return symptoms[0]
    return next(iter(lines), None) or last_line(err, any_line=True) or last_line(out, any_line=False)


def _strongest(lines: list[str], code: int, workdir: str) -> Found | None:
    raised = pick(exceptions(lines, workdir))
    if raised is not None and code not in (1, 2) and len(lines) - raised.at > _AT_END:
        raised = None  # one that the program went on after
    others = errors(lines, code, workdir)
    if raised is not None and not raised.symptom:
        before = next((one for one in others if one.sort != "line" and _explains(one, raised)), None)
        if before is not None:
            return before
        return _with_detail(raised, lines)
    for wanted in (
        [one for one in others if not one.symptom and one.sort != "line"],
        [raised] if raised else [],
        others,
    ):
        if wanted:
            return wanted[0]
    return None


def _explains(one: Found, raised: Found) -> bool:
    """Whether another program's error says more than the exception that only reports its exit."""
    return one.at < raised.at and raised.what.startswith(
        ("subprocess.CalledProcessError", "RuntimeError: DataLoader worker")
    )


def _with_detail(raised: Found, lines: list[str]) -> Found:
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
    return [line[:_PARSED_CHARACTERS].rstrip() for line in text.split("\n")]


def _last_lines(data: bytes) -> list[str]:
    lines = [line for line in _lines(data, cut=False) if line.strip()]
    return [_printable(line)[:LINE_CHARACTERS] for line in lines[-LINES:]]


def _printable(line: str) -> str:
    line = line.expandtabs(4)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"
