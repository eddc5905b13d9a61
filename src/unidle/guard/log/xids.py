"""What each Xid means for a fleet: the catalogue's action in our vocabulary, a role, a rank, and short words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from unidle.guard.log.model import Action, Role, Severity
from unidle.guard.log.xid_codes import CATALOGUE

LOST: Final = 79
PREVIOUS: Final = 45
RECOVERY: Final = 154
NVLINK5: Final = range(144, 151)

ACTIONS: Final[dict[str, Action]] = {
    "IGNORE": "ignore",
    "RESTART_APP": "restart_app",
    "RESTART_FM": "restart_service",
    "RESET_GPU": "reset_gpu",
    "RESTART_BM": "reboot_node",
    "RESTART_VM": "reboot_node",
    "CHECK_MECHANICALS": "check_hardware",
    "CHECK_UVM": "watch",
    "UPDATE_SWFW": "update_software",
    "WORKFLOW_XID_45": "ignore",
    "WORKFLOW_XID_48": "reset_gpu",
    "WORKFLOW_NVLINK_ERR": "check_nvlink",
    "WORKFLOW_NVLINK5_ERR": "check_nvlink",
    "XID_154": "watch",
    "XID_154_EVAL": "watch",
    "CONTACT_SUPPORT": "contact_support",
    "-": "contact_support",
}
"""NVIDIA's words for what to do first, in ours."""

IN_WORDS: Final[dict[Action, str]] = {
    "ignore": "nothing to do",
    "watch": "watch whether it comes again",
    "restart_app": "restart the job",
    "restart_service": "restart the fabric manager",
    "reset_gpu": "reset the GPU",
    "reboot_node": "restart the machine",
    "drain": "drain the node",
    "replace": "replace the part",
    "check_nvlink": "check the NVLink",
    "check_link": "check cable, module and port",
    "check_hardware": "check the hardware",
    "update_software": "update driver or firmware",
    "contact_support": "contact support",
}

# code: role, rank, words (without: words from role and mnemonic), action where it is not the catalogue's
_OURS: Final[dict[int, tuple[Role, int, str] | tuple[Role, int, str, Action]]] = {
    8: ("culprit", 20, "the GPU stopped working on a channel"),
    11: ("culprit", 20, "the application sent a bad command stream"),
    13: ("culprit", 20, "an exception in a kernel of the application"),
    14: ("info", 5, "a channel was reset"),
    25: ("culprit", 20, "the application sent an illegal command stream"),
    31: ("culprit", 20, "the application touched GPU memory that is not its own"),
    32: ("culprit", 20, "the application sent a corrupt command stream"),
    43: ("symptom", 15, "a channel of the application was reset after its own fault"),
    44: ("info", 20, "a fault while the GPU switched contexts"),
    45: ("symptom", 10, "channels were cleaned up after an earlier fault or the end of the process"),
    46: ("culprit", 50, "the GPU stopped processing"),
    48: ("culprit", 80, "an uncorrectable memory error"),
    54: ("culprit", 70, "the board's auxiliary power is not connected"),
    61: ("culprit", 70, "the GPU's micro-controller stopped at a breakpoint", "reset_gpu"),
    62: ("culprit", 70, "the GPU's micro-controller halted"),
    63: (
        "info",
        5,
        "a memory row was remapped or a page retired as intended; it counts after the next reset",
    ),
    64: ("culprit", 75, "a memory row could not be remapped or a page not retired"),
    68: ("culprit", 20, "an exception of the video decoder", "restart_app"),
    69: ("culprit", 20, "the application used a class of command that the engine does not know"),
    74: ("culprit", 60, "an NVLink fault"),
    78: ("culprit", 30, "a virtual GPU could not start"),
    79: ("culprit", 90, "the GPU has fallen off the bus"),
    80: ("culprit", 20, "corrupt data were sent to the GPU"),
    92: ("info", 10, "many corrected memory errors", "watch"),
    93: ("info", 5, "the InfoROM is near the end of its writes"),
    94: ("culprit", 45, "a memory error that was contained: only the job that hit it is harmed"),
    95: ("culprit", 80, "a memory error that was not contained"),
    106: ("info", 0, "a test message"),
    107: ("info", 0, "a test message"),
    109: ("culprit", 50, "the GPU could not switch contexts in time"),
    110: ("culprit", 50, "a security fault"),
    119: ("culprit", 70, "the GPU's system processor (GSP) does not answer"),
    120: ("culprit", 70, "the GPU's system processor (GSP) failed"),
    121: ("info", 10, "a corrected fault on the link between CPU and GPU"),
    136: ("culprit", 60, "an NVLink could not be trained"),
    140: ("culprit", 80, "an ECC error that was not recovered"),
    143: ("culprit", 85, "the GPU could not be initialised"),
    151: ("culprit", 50, "a key rotation failed"),
    154: ("info", 30, "the driver changed its requested action"),
    155: ("culprit", 60, "an NVLink fault defined by software"),
    156: ("culprit", 40, "a resource of the GPU was retired; it takes effect with a reset"),
    157: ("info", 20, "a resource of the GPU could not be retired"),
    158: ("culprit", 70, "a fatal timeout inside the GPU"),
    160: ("info", 10, "a memory channel was retired"),
    161: ("info", 20, "a memory channel could not be retired"),
    162: ("info", 0, "power smoothing works again", "ignore"),
    163: ("info", 5, "power smoothing is off", "watch"),
    164: ("info", 5, "power smoothing nears the end of its life", "watch"),
    165: ("info", 10, "power smoothing is at the end of its life", "contact_support"),
    167: ("culprit", 85, "a fatal timeout on PCIe", "reboot_node"),
    168: ("culprit", 60, "errors in protected memory reduced what the GPU has"),
    169: ("culprit", 70, "the GPU's security processor halted"),
    171: ("culprit", 80, "an uncorrectable error in the GPU's DRAM", "reset_gpu"),
    172: ("culprit", 80, "an uncorrectable error in the GPU's SRAM", "reset_gpu"),
}


@dataclass(frozen=True, slots=True)
class Xid:
    """One code: ``immediate`` and ``investigatory`` are NVIDIA's words, the rest is ours."""

    code: int
    mnemonic: str
    immediate: str
    investigatory: str
    action: Action
    role: Role
    rank: int
    words: str
    sentence: str
    severity: Severity


@cache
def table() -> dict[int, Xid]:
    """All codes that NVIDIA has published, by number."""
    known = {}
    for row in CATALOGUE.splitlines():
        number, mnemonic, immediate, investigatory = row.split()
        known[int(number)] = _merged(int(number), mnemonic, immediate, investigatory)
    return known


def xid(code: int) -> Xid:
    """What a code means; a number that NVIDIA has not published is something to ask about, not to act on."""
    words = "a code that is not in the catalogue"
    return table().get(code) or _xid(code, ("", "-", "-"), "contact_support", "culprit", 30, words)


def _merged(code: int, mnemonic: str, immediate: str, investigatory: str) -> Xid:
    published = (mnemonic, immediate, investigatory)
    action = ACTIONS[immediate]
    if code not in _OURS:
        role: Role = "info" if action == "ignore" else "culprit"
        rank = {"ignore": 5, "restart_app": 20, "reset_gpu": 50}.get(action, 30)
        return _xid(code, published, action, role, rank, _from_mnemonic(mnemonic))
    role, rank, words, *other = _OURS[code]
    return _xid(code, published, other[0] if other else action, role, rank, words)


def _xid(
    code: int, published: tuple[str, str, str], action: Action, role: Role, rank: int, words: str
) -> Xid:
    severity: Severity = "fatal" if rank >= 50 else "error"
    if role == "info":
        severity = "info" if action == "ignore" else "warning"
    sentence = f"Xid {code}: {words}; {IN_WORDS[action]}"
    return Xid(code, *published, action, role, rank, words, sentence, severity)


def _from_mnemonic(mnemonic: str) -> str:
    text = mnemonic.removeprefix("ROBUST_CHANNEL_").replace("_", " ").lower()
    return f"the driver reports {text!r}"
