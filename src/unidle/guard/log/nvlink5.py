"""Xid 144 to 150 (NVLink 5): the registers in the message say which unit of the NVLink failed, and what to do.

:data:`RULES`, at the end, has a head line for each unit and one line for each status below it. Head: Xid, names of the
unit, bit pattern of the first register in its first and in its second layout (32 bits, most significant first, ``-`` is
any). Below: error status (second register), immediate action, investigatory action, severity. Source: NVIDIA's published
NVLink 5 rules; facts only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

_REGISTERS: Final = re.compile(
    r"(?:(?P<unit>\b[A-Z][A-Z0-9_]{1,40})\s+)?(?P<severity>Fatal|Non-?fatal|Link Fatal)?\s*(?:XC(?P<xc>-?\d+))?.{0,20}?"
    r"(?:Link\s+(?P<link>-?\d+))?\s*[(\[](?P<registers>0x[0-9a-fA-F]+(?:[,\s]+0x[0-9a-fA-F]+)*)",
    re.IGNORECASE,
)
_SUBCODE_SHIFT: Final = 20
_SUBCODE_MASK: Final = 0x3F
_WORST: Final = ("RESET_GPU", "XID_154_EVAL", "IGNORE")


@dataclass(frozen=True, slots=True)
class BitPattern:
    """Bits that a register must have: those of ``mask`` are ``value``."""

    mask: int
    value: int

    @classmethod
    def of(cls, text: str) -> BitPattern:
        """From 32 characters: ``0``, ``1`` or ``-`` for any, most significant first."""
        mask = int("".join("0" if c == "-" else "1" for c in text), 2)
        return cls(mask, int(text.replace("-", "0"), 2))

    def fits(self, register: int) -> bool:
        return register & self.mask == self.value


@dataclass(frozen=True, slots=True)
class NvlinkRule:
    """One line of NVIDIA's rules; ``immediate`` and ``investigatory`` are its words."""

    xid: int
    units: tuple[str, ...]
    layouts: tuple[BitPattern, BitPattern]
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
    rule: NvlinkRule | None


@cache
def rules() -> tuple[NvlinkRule, ...]:
    """All published rules, in their order."""
    found, head = [], ("0", "", "", "")
    for row in RULES.splitlines():
        if row.startswith(" "):
            status, immediate, investigatory, severity = row.split()
            layouts = (BitPattern.of(head[2]), BitPattern.of(head[3]))
            units = tuple(head[1].split("/"))
            found.append(
                NvlinkRule(int(head[0]), units, layouts, int(status, 16), immediate, investigatory, severity)
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


def _rule(code: int, unit: str, info: int, status: int) -> NvlinkRule | None:
    """The rule for this unit and status: an exact status, else the worst of its single bits."""
    own = [r for r in rules() if r.xid == code and any(p.fits(info) for p in r.layouts)]
    named = [r for r in own if unit in r.units]
    own = named or own
    exact = [r for r in own if r.status == status]
    bits = exact or [r for r in own if r.status and r.status & status == r.status]
    return min(bits, key=lambda r: _WORST.index(r.immediate), default=None)


RULES: Final = """\
144 SAW_MVB ------000000----------0000100001 ------000000-------------0000001
  0x00000001 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000002 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000004 IGNORE IGNORE Non-fatal
  0x00000008 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000010 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000020 IGNORE IGNORE Non-fatal
145 RLW_CTRL ------000000----------0001100010 ------000000-------------0000011
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
145 RLW_REMAP ------000000----------0010000010 ------000000-------------0000100
  0x00000001 XID_154_EVAL CONTACT_SUPPORT Non-fatal
  0x00000002 XID_154_EVAL CONTACT_SUPPORT Non-fatal
  0x00000004 XID_154_EVAL CHECK_NVLINK_FAILURE_FLOW Non-fatal
  0x00000008 XID_154_EVAL CHECK_NVLINK_FAILURE_FLOW Non-fatal
  0x00000010 XID_154_EVAL CHECK_NVLINK_FAILURE_FLOW Non-fatal
  0x00000020 XID_154_EVAL CHECK_NVLINK_FAILURE_FLOW Non-fatal
  0x00000040 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000080 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000100 IGNORE IGNORE Non-fatal
  0x00000200 IGNORE IGNORE Non-fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
145 RLW_RSPCOL ------000000----------0010100010 ------000000-------------0000101
  0x00000001 IGNORE IGNORE Non-fatal
  0x00000002 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
145 RLW_RXPIPE ------000000---------00011000010 ------000000------------00000110
  0x00000001 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000002 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000004 IGNORE CONTACT_SUPPORT Non-fatal
145 RLW_RXPIPE ------000000----------0011000010 ------000000-------------0000110
  0x00000008 IGNORE CONTACT_SUPPORT Non-fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
145 RLW_SRC_TRACK ------000000----------0011100010 ------000000-------------0000111
  0x00000001 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000002 IGNORE IGNORE Non-fatal
  0x00000004 XID_154_EVAL IGNORE Non-fatal
  0x00000008 XID_154_EVAL IGNORE Non-fatal
  0x00000010 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000020 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
145 RLW_TAGSTATE ------000000----------0100000010 ------000000-------------0001000
  0x00000001 IGNORE IGNORE Non-fatal
  0x00000002 RESET_GPU CONTACT_SUPPORT Fatal
  0x00010000 IGNORE IGNORE Non-fatal
  0x00020000 RESET_GPU CONTACT_SUPPORT Fatal
  0x00100000 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
146 TLW_CTRL ------000000----------0100100011 ------000000-------------0001001
  0x00000001 IGNORE IGNORE Non-fatal
  0x00000002 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000004 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
146 TLW_RX/TLW_RX_PIPE0 ------000000----------0101000011 ------000000-------------0001010
  0x00000001 IGNORE IGNORE Non-fatal
  0x00000002 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000004 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
146 TLW_RX/TLW_RX_PIPE1 ------000000----------0101000011 ------000000-------------0001011
  0x00000001 IGNORE IGNORE Non-fatal
  0x00000002 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000004 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
146 TLW_TX/TLW_TX_PIPE0 ------000000----------0101100011 ------000000-------------0001100
  0x00000001 IGNORE IGNORE Non-fatal
  0x00000002 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000004 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
146 TLW_TX/TLW_TX_PIPE1 ------000000----------0101100011 ------000000-------------0001101
  0x00000001 IGNORE IGNORE Non-fatal
  0x00000002 IGNORE CONTACT_SUPPORT Non-fatal
  0x00000004 RESET_GPU CONTACT_SUPPORT Fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
147 TREX ------000000----------0110000100 ------000000-------------0001110
  0x00000001 IGNORE CONTACT_SUPPORT Non-fatal
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
148 NVLPW_CTRL/NVLPW ------000000----------0000000101 ------000000-------------0001111
  0x80000000 IGNORE CONTACT_SUPPORT Non-fatal
149 NETIR/NETIR_INT ------000000----------0000000110 ------000000-------------0011000
  0x00000000 RESET_GPU SYMPATHETIC_REPORT_SOLO Link-Fatal
149 NETIR_BER_EVENT ------000000----------1000100110 ------000000-------------0010011
  0x00000000 IGNORE INVESTIGATE_LINK_SI_AND_CABLES Non-fatal
  0x00000001 IGNORE INVESTIGATE_LINK_SI_AND_CABLES Non-fatal
  0x00000002 IGNORE INVESTIGATE_LINK_SI_AND_CABLES Non-fatal
  0x00000003 IGNORE INVESTIGATE_LINK_SI_AND_CABLES Non-fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------000000----------0111000110 ------000000-------------0010001
  0x00000000 RESET_GPU SYMPATHETIC_REPORT_SOLO Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------000001----------0111000110 ------000001-------------0010001
  0x00000000 RESET_GPU REPORT_ISSUE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------000010----------0111000110 ------000010-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_LINK_SI Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------000100----------0111000110 ------000100-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_LINK_SI Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------001010----------0111000110 ------001010-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_LINK_SI Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------001111----------0111000110 ------001111-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_SW_USER Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------010000----------0111000110 ------010000-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_SW_USER_LINK_SI Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------010001----------0111000110 ------010001-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_SW_USER Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------010010----------0111000110 ------010010-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_SW_USER_LINK_SI Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------010101----------0111000110 ------010101-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_PEER_DEVICE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------010110----------0111000110 ------010110-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_SW_USER Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------100000----------0111000110 ------100000-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_PEER_DEVICE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------100001----------0111000110 ------100001-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_PEER_DEVICE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------100010----------0111000110 ------100010-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_PEER_DEVICE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------100011----------0111000110 ------100011-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_PEER_DEVICE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------100100----------0111000110 ------100100-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_PEER_DEVICE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------100101----------0111000110 ------100101-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_PEER_DEVICE Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------100110----------0111000110 ------100110-------------0010001
  0x00000000 IGNORE INVESTIGATE_SW/USER Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------101000----------0111000110 ------101000-------------0010001
  0x00000000 IGNORE INVESTIGATE_HOST Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------101010----------0111000110 ------101010-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_LINK_SI_AND_CABLES Link-Fatal
149 NETIR_LINK_EVT/NETIR_LINK_DOWN ------101011----------0111000110 ------101011-------------0010001
  0x00000000 RESET_GPU INVESTIGATE_LINK_SI_AND_CABLES Link-Fatal
149 NETIR_MFDE_EVENT ------000000----------1001000110 ------000000-------------0010100
  0x00000001 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000003 IGNORE IGNORE Non-fatal
  0x00000004 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000005 RESET_GPU CONTACT_SUPPORT Fatal
  0x00000007 RESET_GPU CONTACT_SUPPORT Fatal
150 MSE_WATCHDOG ------000000----------0000000000 ------000000-------------0000000
  0x00000000 RESET_GPU CONTACT_SUPPORT Fatal
"""
