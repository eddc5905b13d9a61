"""The kernel's log since boot (or since a repair), read by a process that may: the probe only judges the findings."""

from __future__ import annotations

from typing import Final

from unidle.probe.check.model import Absent, Check, Context, Outcome, ProbeResult, Symptom, unknown
from unidle.probe.file_system_use import used_at
from unidle.words import counted

_HARMLESS: Final = frozenset({"ignore", "watch", "restart_app"})


def kernel_log(context: Context) -> Outcome:
    """No fault of this node's hardware since it booted, or in the time that the reading covers."""
    if context.kernel_log is None:
        return ProbeResult((unknown("kernel_log", "no reader of the kernel's log was given"),))
    if isinstance(context.kernel_log, str):
        return Absent(context.kernel_log)
    reading = context.kernel_log()
    if reading.why_not is not None:
        return ProbeResult((unknown("kernel_log", reading.why_not),))
    faults = [one for one in reading.findings if one.role == "culprit" and one.action not in _HARMLESS]
    places = [str(place.absolute()) for place in context.directories]
    places += context.used
    in_use: dict[str, bool] = {}
    for one in faults:
        if one.kind == "fs" and one.device:
            in_use.setdefault(one.device, bool(used_at(one.device, places, context.root)))
    unused = [name for name, used in in_use.items() if not used]
    faults = [one for one in faults if one.kind != "fs" or one.device not in unused]
    says = "; ".join(map(_told, faults[:5])) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
    if unused and not faults:
        says = f"none; {', '.join(unused)}: the file system failed, and nothing uses it"
    if reading.undated:
        says = f"{says or 'none'}; {counted(reading.undated, 'line')} without a date not counted"
    unit = f"faults since {reading.since or 'boot'}"
    return ProbeResult((Check("kernel_log", not faults, len(faults), unit, 0, says or "none"),))


def _told(one: Symptom) -> str:
    code = f" {one.code}" if one.code is not None else ""
    return f"{one.kind}{code} on {one.device or 'the node'}: {one.because} ({one.action})"
