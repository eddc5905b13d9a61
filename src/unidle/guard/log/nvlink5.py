"""Xid 144 to 150: the registers in the message say which unit of the NVLink failed, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from unidle.guard.log.nvlink5_rules import RULES

_REGISTERS: Final = re.compile(
    r"(?:(?P<unit>\b[A-Z][A-Z0-9_]{1,40})\s+)?(?P<severity>Fatal|Non-?fatal|Link Fatal)?\s*(?:XC(?P<xc>-?\d+))?.{0,20}?"
    r"(?:Link\s+(?P<link>-?\d+))?\s*[(\[](?P<registers>0x[0-9a-fA-F]+(?:[,\s]+0x[0-9a-fA-F]+)*)",
    re.IGNORECASE,
)
_SUBCODE_SHIFT: Final = 20
_SUBCODE_MASK: Final = 0x3F
_WORST: Final = ("RESET_GPU", "XID_154_EVAL", "IGNORE")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Bits that a register must have: those of ``mask`` are ``value``."""

    mask: int
    value: int

    @classmethod
    def of(cls, text: str) -> Pattern:
        """From 32 characters: ``0``, ``1`` or ``-`` for any, most significant first."""
        mask = int("".join("0" if c == "-" else "1" for c in text), 2)
        return cls(mask, int(text.replace("-", "0"), 2))

    def fits(self, register: int) -> bool:
        return register & self.mask == self.value


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of NVIDIA's rules; ``immediate`` and ``investigatory`` are its words."""

    xid: int
    units: tuple[str, ...]
    layouts: tuple[Pattern, Pattern]
    status: int
    immediate: str
    investigatory: str
    severity: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """The registers of one message. ``rule`` is None where no published rule fits; ``link`` is -1 where none is named."""

    unit: str
    link: int
    subcode: int
    status: int
    fatal: bool
    rule: Rule | None


@cache
def rules() -> tuple[Rule, ...]:
    """All published rules, in their order."""
    found, head = [], ("0", "", "", "")
    for row in RULES.splitlines():
        if row.startswith(" "):
            status, immediate, investigatory, severity = row.split()
            layouts = (Pattern.of(head[2]), Pattern.of(head[3]))
            units = tuple(head[1].split("/"))
            found.append(
                Rule(int(head[0]), units, layouts, int(status, 16), immediate, investigatory, severity)
            )
        else:
            head = tuple(row.split())  # type: ignore[assignment]
    return tuple(found)


def decode(code: int, message: str) -> Decoded | None:
    """The registers of an Xid 144 to 150; None where the message has none."""
    found = _REGISTERS.search(message)
    if found is None:
        return None
    registers = [int(word, 16) for word in re.split(r"[,\s]+", found["registers"].strip())]
    unit, severity = (found["unit"] or "").upper(), (found["severity"] or "").lower()
    rule = (
        _rule(code, unit, registers[0], registers[1]) if len(registers) > 1 else None
    )  # older drivers print one
    fatal = not severity.startswith("non") if severity else rule is not None and "Non" not in rule.severity
    return Decoded(
        unit or (rule.units[-1] if rule else ""),
        int(found["link"]) if found["link"] else -1,
        registers[0] >> _SUBCODE_SHIFT & _SUBCODE_MASK,
        registers[1] if len(registers) > 1 else 0,
        fatal,
        rule,
    )


def _rule(code: int, unit: str, info: int, status: int) -> Rule | None:
    """The rule for this unit and status: an exact status, else the worst of its single bits."""
    own = [r for r in rules() if r.xid == code and any(p.fits(info) for p in r.layouts)]
    named = [r for r in own if unit in r.units]
    own = named or own
    exact = [r for r in own if r.status == status]
    bits = exact or [r for r in own if r.status and r.status & status == r.status]
    return min(bits, key=lambda r: _WORST.index(r.immediate), default=None)
