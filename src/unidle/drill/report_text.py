"""A drill's report for a terminal: a table of stamps, and a strip chart of 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from unidle.drill.conduct import DrillReport
from unidle.drill.phases import DrillOutcome, Phases
from unidle.words import counted

WIDTH: Final = 80
_LABEL: Final = 22
_LETTERS: Final = (
    ("inject", "i"), ("signal", "s"), ("verdict", "v"), ("taint", "t"), ("kill", "k"), ("rendezvous", "r"),
    ("restored", "o"), ("first_step", "f"), ("caught_up", "c"),
)  # fmt: skip
HEADER: Final = [
    "#", "fault", "target", "when", "named", "right", "signal", "verdict", "taint", "kill", "all there", "restored",
    "first step", "caught up",
]  # fmt: skip
_Column = Callable[[int], int]
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def rows(report: DrillReport) -> list[list[str]]:
    """One row for each fault; times in seconds after its injection."""
    return [_row(number, one) for number, one in enumerate(report.outcomes, 1)]


def strip(report: DrillReport) -> list[str]:
    """Steps over time, and below them each fault with the letters of its stamps."""
    span = max(report.ended_ns - report.begun_ns, 1)
    width = WIDTH - _LABEL

    def column(time_ns: int) -> int:
        return min(max((time_ns - report.begun_ns) * width // span, 0), width - 1)

    counts = [0] * width
    for time_ns, _ in report.steps:
        counts[column(time_ns)] += 1
    most = max([*counts, 1])
    bar = "".join(_BLOCKS[-(-count * (len(_BLOCKS) - 1) // most)] for count in counts)
    lines = [_labelled("steps", bar)]
    for number, one in enumerate(report.outcomes, 1):
        lines.append(
            _labelled(f"{number} {one.fault.kind} {one.fault.target}", _track(one.ns, column, width))
        )
    scale = f"0 s{f'{span / 1e9:.1f} s':>{width - 3}}"
    legend = "i injected  s signal  v verdict  t taint  k gang killed  r ranks there"
    return [
        *lines,
        _labelled("", scale),
        legend,
        "o state restored  f first step  c caught up; later letters cover earlier ones",
    ]


def summary(report: DrillReport) -> list[str]:
    """What it comes to, in words."""
    state = f"{report.job} {report.state} after {counted(report.attempts, 'attempt')}" + (
        f": {report.why}" if report.why else ""
    )
    same = "not compared" if report.result is None else report.result.text
    return [
        state,
        f"result compared with a run without faults: {same}",
        f"{counted(report.lost_steps, 'step')} done again; {report.seconds:.1f} s in all, without faults {report.undisturbed_s:.1f} s",
    ]


def reasons(report: DrillReport) -> list[str]:
    """One line for each fault with unidle's verdict on it; then the verdicts that match no fault."""
    return [
        *(
            f"{number} {one.fault.kind} {one.fault.target}: {one.because}"
            for number, one in enumerate(report.outcomes, 1)
        ),
        *(f"no fault hurt {said}" for said in report.misnamed),
    ]


def _row(number: int, one: DrillOutcome) -> list[str]:
    ns = one.ns
    right = {True: "yes", False: "NO", None: ""}[one.correct]
    stamps = [
        _after(ns, t)
        for t in (
            ns.signal,
            ns.verdict,
            ns.taint,
            ns.kill,
            ns.rendezvous,
            ns.restored,
            ns.first_step,
            ns.caught_up,
        )
    ]
    return [str(number), one.fault.kind, one.fault.target, one.fault.when, one.named or "", right, *stamps]


def _after(ns: Phases, time_ns: int | None) -> str:
    return "" if time_ns is None or ns.inject is None else f"{max(time_ns - ns.inject, 0) / 1e9:.2f}"


def _track(ns: Phases, column: _Column, width: int) -> str:
    line = [" "] * width
    if ns.inject is None:
        return "it did not happen"
    shown = _LETTERS if ns.kill is not None else _LETTERS[:4]  # nothing was to catch up with
    stamps = [(letter, t) for name, letter in shown if (t := getattr(ns, name)) is not None]
    end = column(max(t for _, t in stamps))
    for k in range(column(ns.inject), end + 1):
        line[k] = "─"
    for letter, time_ns in stamps:
        line[column(time_ns)] = letter
    return "".join(line).rstrip()


def _labelled(label: str, text: str) -> str:
    return f"{label[: _LABEL - 1]:<{_LABEL}}{text}"


def as_object(report: DrillReport) -> dict[str, object]:
    """What ``--json`` prints."""
    return {
        "faults": [_as_object(one) for one in report.outcomes],
        "misnamed": report.misnamed,
        "lost_steps": report.lost_steps,
        "result_equal": report.result is not None and report.result.equal,
        "result": None if report.result is None else report.result.text,
        "job": report.job,
        "state": report.state,
        "attempts": report.attempts,
        "seconds": round(report.seconds, 3),
        "undisturbed_seconds": round(report.undisturbed_s, 3),
    }


def _as_object(one: DrillOutcome) -> dict[str, object]:
    return {
        "kind": one.fault.kind, "target": one.fault.target, "named": one.named, "correct": one.correct,
        "ns": one.ns.as_dict(), "because": one.because,
    }  # fmt: skip
