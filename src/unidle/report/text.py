"""Formats numbers and names for readers. Pure functions, no locale."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from unidle.ledger.apportion import quotients
from unidle.words import HOUR_NS, MS_NS, S_NS

DEVICE_HOURS_FROM_NS = 10_000 * S_NS


def number(value: float, digits: int = 0) -> str:
    """``1234567`` as ``1,234,567``."""
    return f"{value:,.{digits}f}"


def device_time(ns: int, unit: str = "GPU") -> str:
    """Device time: ``12.4 GPU-s`` up to 10,000 seconds, then ``4.7 GPU-h``."""
    if ns >= DEVICE_HOURS_FROM_NS:
        hours = ns / HOUR_NS
        return f"{number(hours, 1 if hours < 1_000 else 0)} {unit}-h"
    seconds = ns / S_NS
    if 0 < seconds < 0.05:
        return f"<0.1 {unit}-s"
    return f"{number(seconds, 1 if seconds < 1_000 else 0)} {unit}-s"


def percent(part: int, whole: int) -> str:
    """``part / whole`` with one decimal; ``-`` where there is no whole."""
    if whole == 0:
        return "-"
    if 0 < part * 1_000 < whole:
        return "<0.1 %"
    return f"{100 * part / whole:.1f} %"


def shares(parts: Sequence[int], whole: int) -> list[str]:
    """The parts of ``whole`` in percent with one decimal, rounded so that what is shown adds up.

    A part that is not 0 and would show as 0.0 shows as <0.1.
    """
    if whole == 0:
        return ["-"] * len(parts)
    tenths = quotients([part * 1_000 for part in parts], whole)
    return [
        "<0.1 %" if part and not tenth else f"{tenth // 10}.{tenth % 10} %"
        for part, tenth in zip(parts, tenths, strict=True)
    ]


def money(amount: float | None, currency: str) -> str:
    """``1.25 USD``; nothing where there is no price."""
    if amount is None:
        return ""
    if 0 < amount < 0.005:
        return f"<0.01 {currency}"
    return f"{number(amount, 2 if amount < 10_000 else 0)} {currency}"


def clock_time(ns: int | None, *, seconds_only: bool = False) -> str:
    """UTC to the millisecond: ``2026-01-31 12:00:03.250``; nothing for None."""
    if ns is None:
        return ""
    try:
        at = datetime.fromtimestamp(ns // S_NS, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"
    stamp = at.strftime("%Y-%m-%d %H:%M:%S")
    return stamp if seconds_only else f"{stamp}.{ns % S_NS // MS_NS:03d}"


def exact_ns(ns: int) -> str:
    """Every digit: ``3,250,000,000 ns``."""
    return f"{number(ns)} ns"
