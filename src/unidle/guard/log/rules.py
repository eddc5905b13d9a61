"""One kind of kernel message: a word that must be in it, a pattern of its beginning, and what follows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from unidle.guard.log.memory import Now
from unidle.guard.log.model import Action, Finding, Role, Severity
from unidle.guard.log.pci import first

_SEVERITIES: Final[dict[str, Severity]] = {"i": "info", "w": "warning", "e": "error", "f": "fatal"}


@dataclass(frozen=True, slots=True)
class Rule:
    """``pattern`` is matched at the beginning of the message, so that text that only quotes it does not count.

    Its group ``device`` names the device; without one the first PCI address in the message does. A group ``who`` names a
    process.
    """

    kind: str
    needle: str
    pattern: re.Pattern[str]
    role: Role
    action: Action
    severity: Severity
    rank: int
    words: str

    def read(self, now: Now, message: str) -> Finding | None:
        """The finding of this rule in a message that has its needle; None where the pattern is not there."""
        found = self.pattern.match(message)
        if found is None:
            return None
        groups = found.groupdict()
        device = groups.get("device") or first(message)
        about = device or groups.get("who") or ""
        text = f"{about}: {self.words}" if about else self.words
        return now.finding(self.kind, None, device, self.role, self.action, text, self.severity, self.rank)


def rule(kind: str, needle: str, pattern: str, level: str, action: Action, rank: int, words: str) -> Rule:
    """``level``: role and severity in two letters: c, s or i for the role, then i, w, e or f."""
    roles: dict[str, Role] = {"c": "culprit", "s": "symptom", "i": "info"}
    return Rule(
        kind, needle, re.compile(pattern), roles[level[0]], action, _SEVERITIES[level[1]], rank, words
    )
