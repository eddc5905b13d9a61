"""Accelerators that are not NVIDIA's (AMD, Ascend), and services of drivers."""

from __future__ import annotations

from typing import Final

from unidle.guard.log.pci import ADDRESS
from unidle.guard.log.rules import rule

_AMD: Final = rf"(?:\[drm[^\]]*(?:\[amdgpu\])?\] )?(?:\*ERROR\* )?(?:amdgpu (?:(?P<device>{ADDRESS}): )?)?(?:amdgpu: )?(?:\{{\d+\}})?(?:\[drm[^\]]*(?:\[amdgpu\])?\] )?(?:\*ERROR\* )?"
_ASCEND: Final = r"\[ascend\]"

RULES: Final = (
    rule("amdgpu", "uncorrectable hardware error", rf"{_AMD}(?:.{{0,80}}?\b)?(?<!\b0 )(?<!\b0 new )uncorrectable hardware errors?", "cf", "reset_gpu", 80, "the GPU met a hardware error that it could not correct"),
    rule("amdgpu", "correctable hardware error", rf"{_AMD}(?:.{{0,80}}? )?[1-9]\d* (?:new )?correctable hardware errors?", "iw", "watch", 10, "the GPU corrected hardware errors"),
    rule("amdgpu", " timeout", rf"{_AMD}ring \S+ timeout", "ce", "restart_app", 45, "work of the GPU did not end in time"),
    rule("amdgpu", "GPU reset", rf"{_AMD}GPU reset(?:\(\d+\))? failed", "cf", "reboot_node", 72, "the GPU could not be reset"),
    rule("amdgpu", "GPU reset", rf"{_AMD}GPU reset end with ret = -", "cf", "reboot_node", 72, "the GPU could not be reset"),
    rule("amdgpu", "GPU reset begin", rf"{_AMD}GPU reset begin", "se", "restart_app", 30, "the driver resets the GPU: its work is lost"),
    rule("amdgpu", "GPU reset", rf"{_AMD}GPU reset(?:\(\d+\))? succeeded", "ii", "ignore", 5, "the GPU was reset"),
    rule("amdgpu", "VRAM is lost", rf"{_AMD}VRAM is lost due to GPU reset", "se", "restart_app", 20, "the GPU's memory was lost with its reset"),
    rule("amdgpu", "bad memory", rf"{_AMD}.*(?:GPU has encountered bad memory|bad memory page|RMA|exceeds? (?:the )?bad page|RAS EEPROM.*threshold|number of retired pages.*reached)", "cf", "replace", 78, "the GPU's memory has too many bad pages"),
    rule("amdgpu", "oison", rf"{_AMD}.*[Pp]oison (?:is )?consumption", "ce", "restart_app", 45, "a job used data that memory had marked as bad"),
    rule("gpu_lost", "evice lost from bus", rf"{_AMD}.*[Dd]evice lost from bus", "cf", "reboot_node", 90, "the GPU has fallen off the bus"),
    rule("gpu_lost", "inaccessible", rf"amdgpu (?P<device>{ADDRESS}): (?:Unable to|can't) change power state.*(?:device|config space) inaccessible", "cf", "reboot_node", 90, "the GPU has fallen off the bus"),
    rule("amdgpu", "page fault", rf"{_AMD}(?:.{{0,20}}?)\[\w*hub\d*\] (?:retry |no-retry )?page fault", "ce", "restart_app", 20, "the application touched GPU memory that is not its own"),
    rule("amdgpu", "SMU", rf"{_AMD}SMU: (?:I'm not done with your|response|No response)", "se", "watch", 30, "the GPU's power controller does not answer"),
    rule("amdgpu", "hw_init", rf"{_AMD}.*(?:hw_init of IP block <\w+> failed|Fatal error during GPU init)", "cf", "reboot_node", 72, "the GPU could not be initialised"),
    # Ascend
    rule("npu", "[ascend]", rf"{_ASCEND}.*(?:devmm_svm_device_fault|devmm_page_fault_d2h_query_flag|ipc_fault_msg_para_check)", "ce", "restart_app", 20, "the application touched NPU memory that is not its own"),
    rule("npu", "[ascend]", rf"{_ASCEND}.*(?:[Hh]eart\s?beat.{{0,30}}(?:lost|loss|timeout|abnormal)|lost heart\s?beat|device (?:is )?lost|dev(?:ice)?.{{0,20}}not exist)", "cf", "reboot_node", 85, "the NPU does not answer any more"),
    rule("npu", "[ascend]", rf"{_ASCEND}.*(?:uncorrect|multi[- ]?bit|\bUCE\b|fatal|[Hh]ardware fault)", "cf", "reset_gpu", 75, "the NPU reports a hardware fault"),
    rule("npu", "[ascend]", rf"{_ASCEND}.*(?:link down|PCIe? .*(?:fail|error))", "ce", "check_hardware", 60, "the NPU reports a fault of its link"),
)  # fmt: skip

SERVICES: Final = (
    rule("service", ".service: ", r"(?P<device>nvidia-(?:fabricmanager|persistenced|dcgm|imex)|nv-hostengine|dcgm)\.service: (?:Failed with result|Main process exited, code=(?:exited, status=[1-9]|killed|dumped))", "ce", "restart_service", 45, "a service of the GPU driver ended"),
    rule("service", "version mismatch", r".{0,200}[Dd]river/library version mismatch", "ce", "update_software", 40, "library and kernel module of the GPU driver have different versions"),
    rule("service", "fabric manager", r"Failed to start .{0,40}(?i:fabric manager)", "ce", "restart_service", 50, "the fabric manager does not start"),
)  # fmt: skip
SPEAKERS: Final = frozenset({"systemd", "nvidia-persistenced", "nv-hostengine", "nvidia-fabricmanager", "nv-fabricmanager", "nvidia-device-plugin", "nvidia-dcgm", "dcgm"})  # fmt: skip
"""Programs whose lines about the driver's services are trusted; lines of other programs only quote."""
