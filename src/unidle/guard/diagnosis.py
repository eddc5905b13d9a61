"""From the findings of one node to one culprit, with the chain of evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from unidle.guard.log.model import IN_WORDS, Action, Finding
from unidle.guard.log.reader_state import NEAR_NS
from unidle.guard.log.xids import RECOVERY

Part = Literal["cause", "verdict", "also", "symptom", "info"]
_APPLICATION: Final = 20  # the rank up to which a fault is the application's own


@dataclass(frozen=True, slots=True)
class Evidence:
    """One finding and the part that it plays."""

    part: Part
    finding: Finding


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``culprit`` is None where there are only symptoms: the cause is then unknown.

    ``action`` is the driver's own (Xid 154) where it gave one for the culprit's device, else the culprit's.
    ``evidence`` begins with the cause; the rest is in the order of the log.
    """

    culprit: Finding | None
    device: str
    action: Action
    evidence: tuple[Evidence, ...]
    because: str


def within(findings: Iterable[Finding], end_ns: int, window_ns: int = NEAR_NS) -> tuple[Finding, ...]:
    """The findings of the window that ends at ``end_ns``; those without a stamp are kept."""
    return tuple(f for f in findings if f.stamp_ns is None or end_ns - window_ns <= f.stamp_ns <= end_ns)


def judge(findings: Sequence[Finding]) -> Diagnosis | None:
    """The verdict on the findings of one node in one window; None without any finding but information.

    The culprit is the deepest fault (``rank``), of equals the first, of findings whose role is culprit: symptoms neither
    make nor change it, whatever their number and order.
    """
    culprits = [f for f in findings if f.role == "culprit"]
    if not culprits:
        symptoms = [f for f in findings if f.role == "symptom"]
        if not symptoms:
            return None
        parts = tuple(Evidence("symptom", f) for f in sorted(symptoms, key=_order))
        text = f"only symptoms ({_names(symptoms)}); the log does not show the cause"
        return Diagnosis(None, "", "watch", parts, text)
    culprit = min(culprits, key=lambda f: (-f.rank, *_order(f)))
    asked = _asked(culprit, findings)
    action = _action(culprit, asked)
    evidence = _evidence(culprit, asked, findings)
    return Diagnosis(culprit, culprit.device, action, evidence, _because(culprit, asked, action, evidence))


def _order(finding: Finding) -> tuple[int, int, int, str, int]:
    return finding.boot, finding.line, finding.stamp_ns or 0, finding.device, finding.code or 0


def _asked(culprit: Finding, findings: Sequence[Finding]) -> Finding | None:
    """The driver's last recovery action (Xid 154) for the culprit's device, logged after the fault; None without one."""
    words = [
        f
        for f in findings
        if f.kind == "xid" and f.code == RECOVERY and f.verdict and f is not culprit
        and f.device == culprit.device and (f.boot, f.line) > (culprit.boot, culprit.line)
    ]  # fmt: skip
    return max(words, key=_order, default=None)


def _action(culprit: Finding, asked: Finding | None) -> Action:
    if asked is None:
        return culprit.action
    if asked.action != "ignore":
        return asked.action
    return (
        "restart_app" if culprit.rank >= _APPLICATION else culprit.action
    )  # the GPU is well, the job is not


def _evidence(culprit: Finding, asked: Finding | None, findings: Sequence[Finding]) -> tuple[Evidence, ...]:
    rest = sorted((f for f in findings if f is not culprit), key=_order)
    return (Evidence("cause", culprit), *(Evidence(_part(f, asked), f) for f in rest))


def _part(finding: Finding, asked: Finding | None) -> Part:
    if finding is asked:
        return "verdict"
    return "also" if finding.role == "culprit" else finding.role


def _because(culprit: Finding, asked: Finding | None, action: Action, evidence: Sequence[Evidence]) -> str:
    text = f"line {culprit.line}: {culprit.because}"
    if asked is not None:
        text += f"; the driver's action on line {asked.line}: {IN_WORDS[action]}"
    discounted = [e.finding for e in evidence if e.part == "symptom"]
    if discounted:
        text += f"; discounted as symptoms: {_names(discounted)}"
    return text


def _names(findings: Sequence[Finding]) -> str:
    """``xid 45 (3 times), nic``: at most five kinds."""
    counts: dict[str, int] = {}
    for f in sorted(findings, key=lambda f: (f.kind, f.code or 0)):
        name = f.kind if f.code is None else f"{f.kind} {f.code}"
        counts[name] = counts.get(name, 0) + 1
    words = [name if n == 1 else f"{name} ({n} times)" for name, n in counts.items()]
    return ", ".join(words[:5]) + (f" and {len(words) - 5} more kinds" if len(words) > 5 else "")
