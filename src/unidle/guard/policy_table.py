"""What several policies do with the same finding: ours, NVIDIA's catalogue, and those of three clouds. Tables, no code.

The clouds' tables are from their public documentation and the source of their agents, as of 2026: AKS sets a node
condition and leaves the rest to the operator; EKS's node monitoring agent has a list of Xids after which a node is
replaced or restarted (which of the two it does for which Xid is not public: all are shown as replaced); GKE's device
plugin gives a GPU no more work after the Xids of its setting, by default 48, and has a list of its own of Xids that
only set a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from unidle.guard.log.model import Action, Finding, Role
from unidle.guard.log.xids import ACTIONS, NVLINK5, xid

PolicyName = Literal["unidle", "nvidia", "aks", "eks", "gke"]
POLICIES: Final[tuple[PolicyName, ...]] = ("unidle", "nvidia", "aks", "eks", "gke")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a policy does: ``condition`` is the node condition that it sets, empty for none."""

    action: Action
    condition: str
    because: str


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A line of a policy's table; an empty ``kinds``, ``codes`` or ``roles`` fits any. ``action`` None: the finding's own."""

    kinds: tuple[str, ...]
    action: Action | None
    condition: str
    because: str
    codes: frozenset[int] = frozenset()
    roles: tuple[Role, ...] = ()

    def fits(self, finding: Finding) -> bool:
        return (
            (not self.kinds or finding.kind in self.kinds)
            and (not self.codes or finding.code in self.codes)
            and (not self.roles or finding.role in self.roles)
        )


_GPU: Final = ("amdgpu", "npu", "gpu_init", "driver")
_LINKS: Final = frozenset({74, *NVLINK5, 136, 155})
_EKS: Final = frozenset({46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158})  # fmt: skip
_GKE: Final = frozenset({63, 64, 79, 119, 120, 123, 140})
_NONE: Final = "not covered"

_TABLES: Final[dict[PolicyName, tuple[PolicyRow, ...]]] = {
    "unidle": (
        PolicyRow((), None, "", "a symptom: its cause decides", roles=("symptom",)),
        PolicyRow((), None, "", "information", roles=("info",)),
        PolicyRow(("gpu_lost",), None, "GPUMissing", "the GPU is gone"),
        PolicyRow(("xid",), None, "GPUMissing", "the GPU is gone", codes=frozenset({79})),
        PolicyRow(("xid",), None, "NVLinkStatusInactive", "a link of the GPU", codes=_LINKS),
        PolicyRow(("sxid", "fabric"), None, "NVLinkStatusInactive", "the NVLink fabric"),
        PolicyRow(("xid",), None, "XIDErrors", "a fault of the GPU"),
        PolicyRow(_GPU, None, "AcceleratedHardwareReady=False", "a fault of the accelerator"),
        PolicyRow(("nic",), None, "IBLinkFlapping", "the network card: removed after repeated losses of link, not after one"),
        PolicyRow((), None, "", "a fault of the machine"),
    ),
    "aks": (
        PolicyRow(("xid",), "watch", "XIDErrors", "a condition for any Xid; the operator decides"),
        PolicyRow(("gpu_lost",), "watch", "GPUMissing", "a condition when GPUs are fewer than the machine has"),
        PolicyRow(("sxid",), "watch", "NVLinkStatusInactive", "a condition when links are inactive", roles=("culprit",)),
        PolicyRow(("nic",), "watch", "IBLinkFlapping", "a condition when the link flaps", roles=("culprit",)),
        PolicyRow((), "ignore", "", _NONE),
    ),
    "eks": (
        PolicyRow(("xid",), "replace", "AcceleratedHardwareReady=False", "on its list: replaced or restarted after 10 minutes", codes=_EKS),
        PolicyRow(("xid",), "watch", "", "an event, no repair"),
        PolicyRow(("gpu_lost",), "watch", "", "an event that the number of devices is wrong, no repair"),
        PolicyRow(("lockup", "hung_task", "kernel_bug"), "watch", "", "an event, no repair"),
        PolicyRow((), "ignore", "", _NONE),
    ),
    "gke": (
        PolicyRow(("xid",), "drain", "XidCriticalError", "on its list of critical Xids: the GPU receives no more work", codes=frozenset({48})),
        PolicyRow(("xid",), "watch", "XidCriticalError", "a condition on the node until its next boot; no repair", codes=_GKE),
        PolicyRow(("xid",), "ignore", "", "on none of its lists"),
        PolicyRow((), "ignore", "", _NONE),
    ),
}  # fmt: skip


def judge(policy: PolicyName, finding: Finding) -> Judgement:
    """What ``policy`` does with a finding."""
    if policy == "nvidia":
        return _catalogue(finding)
    row = next(row for row in _TABLES[policy] if row.fits(finding))
    because = finding.because if policy == "unidle" else f"{policy}: {row.because}"
    return Judgement(row.action or finding.action, row.condition, because)


def _catalogue(finding: Finding) -> Judgement:
    """NVIDIA's catalogue, without what was there before: each Xid on its own."""
    if finding.kind == "gpu_lost" and finding.role == "culprit":
        return Judgement("reboot_node", "", "nvidia: as Xid 79, RESTART_BM")
    if finding.kind == "sxid":
        action: Action = "reboot_node" if finding.severity == "fatal" else "ignore"
        return Judgement(
            action, "", f"nvidia: an SXid that is {'' if action == 'reboot_node' else 'not '}fatal"
        )
    if finding.kind != "xid" or finding.code is None:
        return Judgement("ignore", "", f"nvidia: {_NONE}")
    if finding.verdict:
        return Judgement(finding.action, "", "nvidia: XID_154, what the driver requests")
    if finding.code in NVLINK5 and "status 0x" in finding.because:
        return Judgement(finding.action, "", "nvidia: by the rules for NVLink 5")
    known = xid(finding.code)
    if finding.code == 45 and finding.cause_code is None:
        return Judgement("restart_service", "", "nvidia: WORKFLOW_XID_45, alone: RESTART_FM")
    word = known.immediate if known.immediate != "-" else "no action is named"
    return Judgement(ACTIONS[known.immediate], "", f"nvidia: {word}")
