"""The kernel's log since boot, read by a process that may: the probe itself only judges the findings."""

from __future__ import annotations

from typing import Final

from unidle.probe.check.model import Check, Context, Found, Outcome, Symptom, unknown

_HARMLESS: Final = frozenset({"ignore", "watch", "restart_app"})


def kernel_log(context: Context) -> Outcome:
    """No fault of this node's hardware since it booted."""
    if context.kernel_log is None:
        return Found((unknown("kernel_log", "no reader of the kernel's log was given"),))
    reading = context.kernel_log()
    if reading.why_not is not None:
        return Found((unknown("kernel_log", reading.why_not),))
    faults = [one for one in reading.findings if one.role == "culprit" and one.action not in _HARMLESS]
    says = "; ".join(map(_told, faults[:5])) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
    return Found((Check("kernel_log", not faults, len(faults), "faults since boot", 0, says or "none"),))


def _told(one: Symptom) -> str:
    code = f" {one.code}" if one.code is not None else ""
    return f"{one.kind}{code} on {one.device or 'the node'}: {one.because} ({one.action})"
