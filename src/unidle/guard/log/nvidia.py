"""Lines of NVIDIA's driver: Xid, lost GPUs, GPUs that do not start, driver and library that do not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from unidle.guard.log.model import IN_WORDS, Action, Finding, Grade, Severity
from unidle.guard.log.nvlink5 import Decoded, decode
from unidle.guard.log.pci import ADDRESS, first, normal
from unidle.guard.log.reader_state import Memory, Now
from unidle.guard.log.xids import ACTIONS, LOST, NVLINK5, PREVIOUS, RECOVERY, xid

_XID: Final = re.compile(
    r"NVRM:\s+(?:GPU\d+:?\s+)?Xid\s*\(([^)]{0,120})\)\s*:\s*(\d{1,5})\b[,.:]?\s*(.*)", re.DOTALL
)
_UUID: Final = re.compile(r"\bGPU-[0-9a-fA-F]{8}-[0-9a-fA-F-]{4,40}")
_PREVIOUS: Final = re.compile(r"caused by previous Xid (\d+)")
_RECOVERY: Final = re.compile(
    r"recovery action changed from 0x([0-9a-fA-F]+) \(([^)]*)\) to 0x([0-9a-fA-F]+) \(([^)]*)\)"
)
_GPU_AT: Final = re.compile(rf"NVRM:\s+GPU at (?:PCI:)?({ADDRESS}): (GPU-[0-9a-fA-F-]+)")
_NAMED: Final = re.compile(rf"NVRM:\s+The NVIDIA GPU ({ADDRESS})")
_OFF_THE_BUS: Final = re.compile(
    rf"NVRM:\s+(?:GPU (?:at )?(?:PCI:)?({ADDRESS}).{{0,80}}?|GPU\d+:? )?(?:\bGPU )?"
    r"(?:\(PCI ID: [^)]{0,40}\)\s+)?(?:installed in this system )?(?:has )?fallen off the bus"
)
_IS_LOST: Final = re.compile(r"NVRM:\s.*NV_ERR_GPU_IS_LOST")
_INACCESSIBLE: Final = re.compile(
    rf"nvidia ({ADDRESS}): (?:Unable to|can't) change power state.*(?:device|config space) inaccessible"
    rf"|NVRM:\s+Attempting to remove device ({ADDRESS}) with non-zero usage count"
)
_NVLINK4: Final = re.compile(r"on link (\d+)\s*\(((?:0x[0-9a-fA-F]+[,\s]*){2,8})\)")
_REST_CHARS: Final = 1000  # the kernel's longest line
# bits of the first register of Xid 74 (NVIDIA's NVLink workflow): of no harm; echoes of a fault elsewhere
_HARMLESS: Final = 1 << 0 | 1 << 23 | 1 << 30
_ECHOES: Final = 1 << 1 | 1 << 20
_INIT: Final = re.compile(
    rf"NVRM:\s+(?:GPU (?:PCI:)?({ADDRESS}).{{0,40}}?)?(?:RmInitAdapter failed|rm_init_adapter.{{0,6}} failed|The NVIDIA probe routine failed|None of the NVIDIA devices were (?:initialized|probed)|gpuHandleSanityCheckRegReadError)"
)
_UVM_FATAL: Final = re.compile(r"NVRM:\s+nvGpuOpsReportFatalError: .*(requir\w+ os reboot)?")
_LOCKED: Final = re.compile(r"NVRM:\s+krcWatchdog\w*: RC watchdog: GPU is probably locked")
_MISMATCH: Final = re.compile(r"NVRM:\s+API mismatch:")
# the driver's own numbers of recovery actions (NVML's nvmlDeviceGpuRecoveryAction)
_ASKED: Final[dict[int, tuple[Action, str]]] = {
    0: ("ignore", "nothing any more"),
    1: ("reset_gpu", "a reset of the GPU"),
    2: ("reboot_node", "a restart of the machine"),
    3: ("drain", "an end of peer-to-peer traffic before new work"),
    4: ("reset_gpu", "a reset of the GPU once its work has ended"),
    5: ("restart_service", "a new set-up of the NVLink domain (IMEX)"),
}  # fmt: skip


def read(message: str, memory: Memory, now: Now) -> Finding | None:
    """The finding in a line of the driver; None if the line does not matter."""
    if found := _XID.match(message):
        return _read_xid(found, memory, now)
    if found := _GPU_AT.match(message):
        if len(memory.uuids) < 1024:
            memory.uuids[found[2].lower()] = normal(found[1])
        return None
    if found := _NAMED.match(message):
        memory.named = normal(found[1])
        return _lost(memory.named, memory, now) if "fallen off the bus" in message else None
    if found := _OFF_THE_BUS.match(message):
        device, memory.named = normal(found[1]) if found[1] else memory.named, ""
        return _lost(device, memory, now)
    if _IS_LOST.match(message):
        return None if memory.gone(now) and not memory.repeats else _lost(first(message), memory, now)
    if found := _INACCESSIBLE.match(message):
        return _lost(normal(found[1] or found[2]), memory, now)
    return _other(message, memory, now)


def _other(message: str, memory: Memory, now: Now) -> Finding | None:
    if found := _INIT.match(message):
        device = normal(found[1]) if found[1] else ""
        text = (
            "the GPU could not be initialised: it cannot be used until it was reset or the machine restarted"
        )
        hit = now.finding("gpu_init", None, device, Grade("culprit", "reboot_node", "fatal", 55), text)
        cause = memory.fault(device, now) or memory.gone(now)
        if cause is not None and cause.kind == "gpu_init":
            same = f"the same failure as on line {cause.line}"
            return hit.as_symptom(same, cause, rank=0) if memory.repeats else None
        return explained(hit, cause)
    if _UVM_FATAL.match(message):
        text = "the driver's memory manager met a fatal error: only a restart of the machine clears it"
        hit = now.finding("driver", None, "", Grade("culprit", "reboot_node", "fatal", 72), text)
        return explained(hit, memory.gone(now))
    if _LOCKED.match(message):
        text = "a channel of the GPU does not move: its work may hang"
        return explained(
            now.finding("driver", None, "", Grade("culprit", "watch", "error", 25), text), memory.gone(now)
        )
    if _MISMATCH.match(message):
        text = "library and kernel module of the driver have different versions: load the module that was installed, or restart"
        return now.finding("driver", None, "", Grade("culprit", "update_software", "error", 40), text)
    return None


def _lost(device: str, memory: Memory, now: Now) -> Finding:
    text = "the GPU has fallen off the bus: it answers no more until the machine was restarted"
    hit = now.finding("gpu_lost", None, device, Grade("culprit", "reboot_node", "fatal", 90), text)
    before = memory.gone(now)
    if before is not None and (before.device == device or not device or not before.device):
        why = f"the same loss as on line {before.line}"
        return hit.as_symptom(why, before, rank=0)
    return hit


def explained(hit: Finding, cause: Finding | None) -> Finding:
    """The finding as a symptom of an earlier, deeper fault; unchanged without one."""
    if cause is None or cause.rank <= hit.rank or hit.role == "info":
        return hit
    name = (
        f"{'Xid' if cause.kind == 'xid' else cause.kind} {cause.code}"
        if cause.code is not None
        else cause.kind
    )
    why = f"{hit.because}; caused by {name} on line {cause.line}"
    return hit.as_symptom(why, cause, cause_code=cause.code)


def _read_xid(found: re.Match[str], memory: Memory, now: Now) -> Finding:
    where, code, rest = found[1], int(found[2]), found[3][:_REST_CHARS]
    device = first(where)
    if not device and (uuid := _UUID.search(where)):
        device = memory.uuids.get(uuid[0].lower(), uuid[0])
    if code == RECOVERY:
        return _recovery(device, rest, memory, now)
    known = xid(code)
    text = known.sentence
    hit = now.finding("xid", code, device, known.grade, text)
    if code == PREVIOUS:
        return _cleaned_up(hit, rest, memory, now)
    if code in NVLINK5:
        hit = _nvlink5(hit, rest)
    elif code == 74:
        hit = _nvlink4(hit, rest)
    if code == LOST:
        return _first_loss(hit, memory, now)
    peers = (
        memory.gone(now) if code in NVLINK5 or code == 74 else None
    )  # a GPU that is gone breaks its peers' links
    return explained(hit, memory.fault(device, now) or peers)


def _first_loss(hit: Finding, memory: Memory, now: Now) -> Finding:
    """Xid 79; a symptom where an earlier Xid 79 has already reported the same loss."""
    before = memory.gone(now)
    if before is not None and before.kind == "xid" and before.device == hit.device:
        why = f"the same loss as on line {before.line}"
        return hit.as_symptom(why, before, rank=0)
    return hit


def _cleaned_up(hit: Finding, rest: str, memory: Memory, now: Now) -> Finding:
    """Xid 45 is never a cause; it often names the one before it."""
    named = _PREVIOUS.search(rest)
    code = int(named[1]) if named else None
    cause = memory.fault(hit.device, now) or (memory.by_code.get(code) if code is not None else None)
    if code is not None and (cause is None or cause.code != code):
        cause = memory.by_code.get(code, cause)
    if code is None and cause is None:
        return hit
    code = code if code is not None else cause.code if cause is not None else None
    line = cause.line if cause is not None else None
    name = f"Xid {code}" if code is not None else cause.kind if cause is not None else ""
    why = f"Xid 45: channels were cleaned up after {name}" + (f" on line {line}" if line else "")
    return replace(hit, because=why, cause_code=code, cause_line=line)


def _recovery(device: str, rest: str, memory: Memory, now: Now) -> Finding:
    """Xid 154: the driver's own verdict on what went wrong before. What counts is the second of its two words."""
    known = xid(RECOVERY)
    found = _RECOVERY.search(rest)
    if found is None:
        text = f"Xid 154: {known.words}; {IN_WORDS['watch']}"
        return now.finding("xid", RECOVERY, device, Grade("info", "watch", "warning", known.rank), text)
    action, asked = _asked(int(found[3], 16), found[4])
    cause = memory.fault(device, now) or (memory.gone(now) if not device else None)
    text = f"Xid 154: the driver requests {asked}"
    if cause is not None and cause.code != RECOVERY:
        code = f" {cause.code}" if cause.code is not None else ""
        text += f", after {cause.kind}{code} on line {cause.line}"
    lone = cause is None and action != "ignore"
    return now.finding(
        "xid", RECOVERY, device,
        Grade("culprit" if lone else "info", action, "info" if action == "ignore" else "error", known.rank),
        text, cause, verdict=action,
    )  # fmt: skip


def _asked(number: int, words: str) -> tuple[Action, str]:
    """By the number; by the driver's words where a newer driver has a new one."""
    if number in _ASKED:
        return _ASKED[number]
    low = words.lower()
    if "boot" in low:
        return _ASKED[2]
    return _ASKED[1] if "reset" in low or "flr" in low else ("drain", f"{words!r}, which is new")


def _nvlink4(hit: Finding, rest: str) -> Finding:
    """Xid 74 by the first of its registers, where the others are empty."""
    found = _NVLINK4.search(rest)
    if found is None:
        return hit
    registers = [int(word, 16) for word in re.split(r"[,\s]+", found[2].strip(" ,"))]
    at = f"Xid 74: NVLink fault on link {found[1]}"
    if any(registers[1:]) or registers[0] & ~(_HARMLESS | _ECHOES) or not registers[0]:
        return replace(hit, because=f"{at}; {IN_WORDS[hit.action]}")
    if registers[0] & _ECHOES:
        text = f"{at}: often the echo of a fault elsewhere"
        return replace(hit, role="info", action="watch", because=text, severity="warning", rank=10)
    return replace(hit, role="info", action="ignore", because=f"{at}: of no harm", severity="info", rank=5)


def _nvlink5(hit: Finding, rest: str) -> Finding:
    """Xid 144 to 150 by what their registers say."""
    read_out = decode(hit.code or 0, rest)
    if read_out is None:
        return hit
    action, why = _nvlink5_action(read_out)
    link = f" on link {read_out.link}" if read_out.link >= 0 else ""
    sub = f", sub-code {read_out.subcode}" if read_out.subcode else ""
    text = f"Xid {hit.code}: NVLink unit {read_out.unit or 'unknown'}{link}, status 0x{read_out.status:08x}{sub}: {why}"
    if not read_out.fatal and action in ("ignore", "watch"):
        severity: Severity = "info" if action == "ignore" else "warning"
        return replace(hit, role="info", action=action, because=text, severity=severity, rank=10)
    return replace(hit, action=action, because=text, severity="fatal" if read_out.fatal else "error")


def _nvlink5_action(read_out: Decoded) -> tuple[Action, str]:
    rule = read_out.rule
    if rule is None:
        if read_out.fatal:
            return "reset_gpu", "no rule is published for it, and it is fatal; reset the GPU"
        return "watch", "no rule is published for it, and it is not fatal"
    if rule.immediate == "XID_154_EVAL":
        return ("reset_gpu" if read_out.fatal else "watch"), "the action is that of the Xid 154 after it"
    action = ACTIONS[rule.immediate]
    if action == "ignore" and rule.investigatory == "INVESTIGATE_LINK_SI_AND_CABLES":
        return "check_nvlink", "bits were lost on the link; check cables and seating"
    then = {
        "INVESTIGATE_PEER_DEVICE": "; the cause is at the other end of the link",
        "SYMPATHETIC_REPORT_SOLO": "; often the echo of a fault elsewhere",
        "INVESTIGATE_HOST": "; the cause is in the host",
    }.get(rule.investigatory, "")
    return action, IN_WORDS[action] + then
