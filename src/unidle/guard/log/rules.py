"""Kinds of kernel messages: of each a word that must be in it, a pattern of its beginning, and what follows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from unidle.guard.log.model import Action, Finding, Grade, Role, Severity
from unidle.guard.log.pci import ADDRESS, first
from unidle.guard.log.reader_state import Now

_SEVERITIES: Final[dict[str, Severity]] = {"i": "info", "w": "warning", "e": "error", "f": "fatal"}


@dataclass(frozen=True, slots=True)
class LogRule:
    """``pattern`` is matched at the beginning of the message, so that text that only quotes it does not count.

    Its group ``device`` names the device; without one the first PCI address in the message does. A group ``who`` names a
    process.
    """

    kind: str
    needle: str
    pattern: re.Pattern[str]
    grade: Grade
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
        return now.finding(self.kind, None, device, self.grade, text)


def rule(kind: str, needle: str, pattern: str, level: str, action: Action, rank: int, words: str) -> LogRule:
    """``level``: role and severity in two letters: c, s or i for the role, then i, w, e or f."""
    roles: dict[str, Role] = {"c": "culprit", "s": "symptom", "i": "info"}
    grade = Grade(roles[level[0]], action, _SEVERITIES[level[1]], rank)
    return LogRule(kind, needle, re.compile(pattern), grade, words)


_HW: Final = r"(?:\{\d+\})?(?:mce: )?\[Hardware Error\]: "
_PORT: Final = rf"(?:pcieport|pci|[\w-]+) (?P<device>{ADDRESS}): "

MACHINE: Final = (
    # machine checks
    rule("mce", "Machine Check Exception", rf"{_HW}(?P<device>CPU ?\d+): Machine Check Exception:", "cf", "reboot_node", 86, "a machine check that the processor could not correct"),
    rule("mce", "Machine Check:", rf"{_HW}(?P<device>CPU ?\d+): Machine Check: \d+ Bank \d+: [bf]", "cf", "drain", 82, "a machine check that was not corrected"),
    rule("mce", "Machine Check:", rf"{_HW}(?P<device>CPU ?\d+): Machine Check:", "iw", "watch", 15, "a machine check that was corrected"),
    rule("mce", "achine check", rf"{_HW}Machine check events logged", "iw", "watch", 10, "the processor noted machine checks"),
    rule("mce", "Uncorrected", rf"{_HW}(?:Uncorrected|Deferred) .*error", "ce", "drain", 80, "a hardware error that was not corrected"),
    rule("mce", "Corrected error", rf"{_HW}Corrected error", "iw", "watch", 12, "a hardware error that was corrected"),
    rule("mce", "Uncorrected hardware memory error", r"(?:mce|MCE).*Uncorrected hardware memory error", "ce", "drain", 80, "memory gave data that could not be corrected"),
    rule("mce", "event severity", rf"{_HW}event severity: (?:fatal|recoverable|info\b.*fatal)", "cf", "drain", 82, "the firmware reports a hardware error that was not corrected"),
    rule("mce", "event severity", rf"{_HW}event severity: corrected", "iw", "watch", 12, "the firmware reports a hardware error that was corrected"),
    rule("mce", "GHES", r"(?:\{\d+\})?GHES: Fatal hardware error", "cf", "reboot_node", 86, "the firmware reports a fatal hardware error"),
    rule("mce", "BERT", r"BERT: Error records from previous boot|BERT: Total records found", "iw", "watch", 15, "an error from before the last boot is on record"),
    rule("mce", " UE ", r"EDAC (?P<device>\w+): (?:UE |\d+ UE ).*", "cf", "drain", 82, "main memory gave data that could not be corrected"),
    rule("mce", " CE ", r"EDAC (?P<device>\w+): (?:CE |\d+ CE ).*", "iw", "watch", 12, "main memory corrected an error"),
    rule("mce", "Memory failure", r"Memory failure: 0x\w+: recovery action for .*: (?:Failed|Ignored|Delayed)", "ce", "drain", 80, "a bad page of memory could not be taken out of use"),
    rule("mce", "Memory failure", r"Memory failure: 0x\w+: (?:Sending SIGBUS to|Killing) ", "se", "restart_app", 30, "a process that used a bad page of memory was stopped"),
    rule("mce", "Memory failure", r"Memory failure: 0x\w+: recovery action for .*: Recovered", "iw", "watch", 20, "a bad page of memory was taken out of use"),
    # PCIe
    rule("pcie", "severity=", rf"{_PORT}(?:AER: )?PCIe Bus Error: severity=Uncorrect\w* \(Fatal\)", "cf", "drain", 84, "a fatal error on PCIe"),
    rule("pcie", "severity=", rf"{_PORT}(?:AER: )?PCIe Bus Error: severity=Uncorrect\w* \(Non-Fatal\)", "ce", "check_hardware", 48, "an error on PCIe that was not corrected"),
    rule("pcie", "severity=Corrected", rf"{_PORT}(?:AER: )?PCIe Bus Error: severity=Correct", "ii", "ignore", 5, "an error on PCIe that was corrected"),
    rule("pcie", "AER", rf"{_PORT}AER: (?:Multiple )?Correct\w+ error.*", "ii", "ignore", 5, "an error on PCIe that was corrected"),
    rule("pcie", "AER", rf"{_PORT}AER: (?:Multiple )?Uncorrect\w+ \(Fatal\) error.*", "cf", "drain", 84, "a fatal error on PCIe"),
    rule("pcie", "AER", rf"{_PORT}AER: (?:Multiple )?Uncorrect\w+ \(Non-Fatal\) error.*", "ce", "check_hardware", 48, "an error on PCIe that was not corrected"),
    rule("pcie", "AER", rf"{_PORT}AER: device recovery failed", "cf", "reboot_node", 84, "the device did not come back after an error on PCIe"),
    rule("pcie", "AER", rf"{_PORT}AER: device recovery successful", "ii", "ignore", 0, "the device is back after an error on PCIe"),
    rule("pcie", "DPC", rf"{_PORT}DPC: containment event", "cf", "drain", 84, "the port shut its link after an error on PCIe"),
    rule("pcie", "pciehp", rf"{_PORT}(?:pciehp: )?Slot\([\w-]+\): (?:Link Down|Card not present)", "ce", "check_hardware", 60, "the device in the slot is gone"),
    rule("pcie", "available PCIe bandwidth", rf"(?:\S+ )?(?P<device>{ADDRESS}): [\d.]+ Gb/s available PCIe bandwidth, limited by", "iw", "check_hardware", 10, "the device has less PCIe bandwidth than it could use"),
    # heat and power
    rule("thermal", "temperature above threshold", r"(?:mce: )?(?P<device>CPU\d+): (?:Core|Package) temperature above threshold", "iw", "check_hardware", 20, "the processor is too hot and was slowed down"),
    rule("thermal", "temperature", r"thermal (?P<device>thermal_zone\d+|\S+): .*critical temperature reached", "cf", "drain", 70, "a critical temperature was reached"),
    rule("thermal", "emperature reached", r".{0,60}[Cc]ritical temperature reached", "cf", "drain", 70, "a critical temperature was reached"),
    rule("power", "ower limit notification", r"(?:mce: )?(?P<device>CPU\d+): .*[Pp]ower limit notification", "iw", "watch", 10, "the processor reached its power limit"),
    rule("power", "power supply", r"(?i)(?:ipmi|acpi|power).{0,60}power supply.{0,40}(?:fail|lost|critical)", "ce", "check_hardware", 50, "a power supply failed"),
    # the kernel
    rule("panic", "Kernel panic", r"(?:.{0,20}end )?-*\[?\s*(?:end )?Kernel panic - not syncing", "cf", "reboot_node", 88, "the kernel stopped"),
    rule("kernel_bug", "BUG: ", r"BUG: (?:unable to handle|kernel NULL pointer|Bad page state|Bad rss|scheduling while atomic|workqueue lockup|KASAN)", "cf", "reboot_node", 66, "the kernel found a bug in itself"),
    rule("kernel_bug", "kernel BUG at", r"(?:-+\[ cut here \]-+ ?)?kernel BUG at ", "cf", "reboot_node", 66, "the kernel found a bug in itself"),
    rule("kernel_bug", "Oops", r"(?:Internal error: )?Oops(?: - \w+)?: ", "cf", "reboot_node", 66, "the kernel found a bug in itself"),
    rule("kernel_bug", "Unable to handle kernel", r"Unable to handle kernel ", "cf", "reboot_node", 66, "the kernel found a bug in itself"),
    rule("kernel_bug", "general protection fault", r"general protection fault(?:,|:) ", "cf", "reboot_node", 66, "the kernel found a bug in itself"),
    rule("lockup", "LOCKUP", r"(?:NMI watchdog: |watchdog: )?Watchdog detected hard LOCKUP on cpu (?P<device>\d+)", "cf", "reboot_node", 64, "a processor hangs in the kernel"),
    rule("lockup", "soft lockup", r"(?:NMI watchdog: |watchdog: )?BUG: soft lockup - (?P<device>CPU#\d+) stuck", "ce", "watch", 36, "a processor was busy in the kernel for too long"),
    rule("lockup", " stall", r"(?:rcu: )?INFO: \w+ (?:self-)?detected (?:expedited )?stalls? on CPU", "ce", "watch", 34, "a processor was busy in the kernel for too long"),
    rule("lockup", "kthread starved", r"rcu: \w+ kthread (?:timer wakeup didn't happen|starved)", "se", "watch", 15, "the kernel's own threads got no processor time"),
    rule("hung_task", "blocked for more than", r"INFO: task (?P<who>\S+?):\d+ blocked for more than \d+ seconds", "sw", "watch", 12, "the process waits in the kernel and cannot continue"),
    rule("oom", "Killed process", r"(?:Memory cgroup out of memory|Out of memory(?: \([^)]*\))?): Killed process \d+ \((?P<who>[^)]*)\)", "se", "restart_app", 25, "the process was killed because memory ran out"),
    rule("oom", "Kill process", r"(?:Memory cgroup out of memory|Out of memory): Kill process \d+ \((?P<who>[^)]*)\)", "se", "restart_app", 25, "the process was killed because memory ran out"),
    rule("oom", "invoked oom-killer", r"(?P<who>\S.{0,15}) invoked oom-killer: ", "se", "restart_app", 24, "memory ran out"),
)  # fmt: skip
"""The machine itself: memory and processor checks, PCIe, heat and power, and a kernel in trouble."""


_MLX: Final = rf"(?:mlx[45]_(?:core|en|ib)(?:\.\w+)? ?(?:{ADDRESS}(?::\s|\s|(?=:)))?:?\s*)?"
_FUNCTION: Final = r"(?:[\w.]+:\d+:\(pid \d+\): ?)?(?:[\w.]+:\d+: ?)?"
_DRIVERS: Final = r"(?:bnxt_en|ice|i40e|ixgbe|ixgbevf|igb|igc|e1000e?|tg3|bnx2x|qede|ena|ionic|hns3|iavf|atlantic|r8169|cxgb4|enic|nfp|fbnic|mana|gve)"
_IFACE: Final = r"(?P<device>[A-Za-z][\w.@-]{0,20})"

NETWORK: Final = (
    # Mellanox / NVIDIA
    rule("nic", "Link down", rf"mlx[45]_(?:core|en) {ADDRESS}:? {_IFACE}:? Link down", "cw", "check_link", 40, "the link is down"),
    rule("nic", "Link down", rf"(?:mlx[45]_(?:core|en):? )?{_IFACE}: Link [Dd]own", "cw", "check_link", 40, "the link is down"),
    rule("nic", "Link Down", rf"mlx4_en: {_IFACE}: Link Down", "cw", "check_link", 40, "the link is down"),
    rule("nic", "Link up", rf"mlx[45]_(?:core|en) {ADDRESS}:? {_IFACE}:? Link up", "ii", "ignore", 0, "the link is up again"),
    rule("nic", "Link DOWN", rf"mlx[45]_(?:core|ib) {ADDRESS}:? {_IFACE}: Port: \d+ Link DOWN", "cw", "check_link", 40, "the InfiniBand port is down"),
    rule("nic", "Link ACTIVE", rf"mlx[45]_(?:core|ib) {ADDRESS}:? {_IFACE}: Port: \d+ Link ACTIVE", "ii", "ignore", 0, "the InfiniBand port is active again"),
    rule("nic", "Port module event", rf"{_MLX}{_FUNCTION}Port module event: module \d+, Cable unplugged", "cw", "check_link", 42, "the cable or module was unplugged"),
    rule("nic", "Port module event", rf"{_MLX}{_FUNCTION}Port module event(?:\[error\])?: module \d+,(?: Cable error,)? High Temperature", "ce", "check_link", 45, "the module is too hot and is switched off"),
    rule("nic", "Port module event", rf"{_MLX}{_FUNCTION}Port module event\[error\]: module \d+, ", "ce", "check_link", 45, "the cable or module has an error"),
    rule("nic", "Port module event", rf"{_MLX}{_FUNCTION}Port module event: module \d+, Cable plugged", "ii", "ignore", 0, "a cable or module was plugged in"),
    rule("nic", "insufficient power", rf"{_MLX}{_FUNCTION}Detected insufficient power on the PCIe slot", "iw", "check_hardware", 20, "the slot supplies too little power"),
    rule("nic", "High temperature", rf"{_MLX}{_FUNCTION}High temperature on sensors", "cw", "check_hardware", 30, "the card is too hot"),
    rule("nic", "compromised", rf"{_MLX}{_FUNCTION}device's health compromised", "cf", "reboot_node", 62, "the card's firmware stopped answering"),
    rule("nic", "Fatal error", rf"{_MLX}{_FUNCTION}Fatal error \d+ detected", "cf", "reboot_node", 62, "a fatal error of the card's firmware"),
    rule("nic", "Health issue observed", rf"{_MLX}{_FUNCTION}Health issue observed, .*severity\([0-3]\)", "cf", "reboot_node", 62, "a fatal error of the card's firmware"),
    rule("nic", "Health issue observed", rf"{_MLX}{_FUNCTION}Health issue observed", "ce", "watch", 30, "the card's firmware reports an issue with its health"),
    rule("nic", "recover", rf"{_MLX}{_FUNCTION}(?:health recovery (?:flow )?(?:failed|aborted)|mlx5_health_try_recover.*(?:failed|abort))", "cf", "reboot_node", 64, "the card could not be recovered"),
    rule("nic", "nternal error detected", rf"mlx4_core {ADDRESS}: Internal error detected", "cf", "reboot_node", 62, "an internal error of the card"),
    rule("nic", "Will cause a leak", rf"{_MLX}{_FUNCTION}\w+\(0x\w+\).{{0,40}}timeout. Will cause a leak", "ce", "reboot_node", 58, "the card's firmware does not answer commands"),
    rule("nic", "error code", rf"mlx5_core {ADDRESS}: (?:mlx5_load_one|mlx5_init_one|probe_one|init_one):?\S* .*failed with error code", "cf", "reboot_node", 60, "the card could not be started"),
    rule("nic", "device inaccessible", rf"(?:mlx[45]_core|bnxt_en|ice|i40e|ionic|irdma) {ADDRESS}: Unable to change power state.*device inaccessible", "cf", "reboot_node", 64, "the card is gone from the bus"),
    rule("nic", "TX timeout", rf"(?:mlx5_core|bnxt_en|ice|ena) {ADDRESS}:? {_IFACE}:? TX timeout detected", "ce", "check_link", 45, "the card stopped sending"),
    rule("nic", "TX timeout", rf"(?:mlx5_core|bnxt_en|ice|ena) {ADDRESS}:? .*TX timeout", "ce", "check_link", 45, "the card stopped sending"),
    rule("nic", "NETDEV WATCHDOG", rf"(?:NETDEV WATCHDOG: |.{{0,60}}\bNETDEV WATCHDOG: ){_IFACE} \(\S+\): transmit queue .*timed out", "ce", "check_link", 45, "the card stopped sending"),
    rule("nic", "NETDEV WATCHDOG", rf"\S+ {ADDRESS} {_IFACE}: NETDEV WATCHDOG: .*timed out", "ce", "check_link", 45, "the card stopped sending"),
    # Broadcom, Intel, others
    rule("nic", "ink is ", rf"{_DRIVERS} {ADDRESS}:? {_IFACE}: (?:\w+: )?(?:\w+ )?(?:NIC )?[Ll]ink is [Dd]own", "cw", "check_link", 40, "the link is down"),
    rule("nic", "ink is ", rf"{_DRIVERS} {ADDRESS}:? (?:{_IFACE}: )?(?:\w+ )?(?:NIC )?[Ll]ink is [Uu]p", "ii", "ignore", 0, "the link is up"),
    rule("nic", "ink is ", rf"(?:{_DRIVERS}: )?{_IFACE}:? (?:NIC )?[Ll]ink is [Dd]own", "cw", "check_link", 40, "the link is down"),
    rule("nic", "ink is ", rf"(?:{_DRIVERS}: )?{_IFACE}:? (?:NIC )?[Ll]ink is [Uu]p", "ii", "ignore", 0, "the link is up"),
    rule("nic", "bnxt_en", rf"bnxt_en {ADDRESS}:? .*(?:[Ff]irmware (?:not responding|fatal|health)|Error \(timeout: \d+\) msg|FW fatal|Fatal firmware)", "ce", "reboot_node", 58, "the card's firmware does not answer"),
    rule("nic", "irdma", r"(?:irdma|ice) .*(?:request reset|CQP (?:timeout|hung)|HW (?:hang|reset failed))", "ce", "check_link", 45, "the card's RDMA engine had to be reset"),
    rule("nic", "MDD", rf"(?:ice|i40e) {ADDRESS}: .*Malicious Driver Detection", "iw", "watch", 20, "the card stopped a queue for bad requests"),
    rule("nic", "infiniband ", r"infiniband (?P<device>\w+): (?:ib_query_port failed|.*(?:device|port) (?:removed|error)|.*fatal)", "ce", "check_link", 45, "the InfiniBand device does not answer"),
    rule("nic", "link down", r"(?P<device>ib[sp]?\w*): (?:mlx5\w*: )?link down", "cw", "check_link", 40, "the InfiniBand link is down"),
    rule("nic", "not ready", r"(?P<device>ib[sp]?\w*): (?:mlx5\w*: )?link (?:is |becomes )?not ready", "cw", "check_link", 40, "the InfiniBand link is down"),
    rule("nic", "DOWN", r"(?:infiniband |IB: )?(?P<device>(?:mlx\d|irdma|bnxt_re|hfi1|hns)_?\w*): [Pp]ort:? ?\d+\b.{0,60}\bDOWN", "cw", "check_link", 40, "the InfiniBand port is down"),
    rule("nic", "LID change", r"(?P<device>mlx\w+|ib\w+):.*(?:SM|LID) change", "ii", "ignore", 0, "the subnet manager changed an address"),
    # bonds
    rule("nic", "link status definitely down", r"(?:bonding: )?\w+: (?:\(slave (?P<device>[\w.-]+)\): )?link status definitely down", "cw", "check_link", 40, "a link of the bond is down"),
    rule("nic", "link status definitely up", r"(?:bonding: )?\w+: (?:\(slave (?P<device>[\w.-]+)\): )?link status definitely up", "ii", "ignore", 0, "a link of the bond is up again"),
    rule("nic", "without any active interface", r"(?:bonding: )?(?P<device>\w+): now running without any active interface", "ce", "check_link", 48, "no link of the bond is left"),
)  # fmt: skip
"""Network cards, InfiniBand and bonds, as their drivers print them."""


_DEV: Final = r"(?P<device>[A-Za-z][\w!.-]*)"
_NVME: Final = r"nvme (?P<device>nvme\d+): "
_FS: Final = r"(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs|FAT-fs|bcachefs)"

STORAGE: Final = (
    rule("disk", "medium error, dev", rf"(?:blk_update_request: |print_req_error: )?critical medium error, dev {_DEV}", "ce", "replace", 55, "the disk cannot read or write a place on its medium"),
    rule("disk", "error, dev", rf"(?:blk_update_request: |print_req_error: |end_request: |block \w+: )?(?:I/O|critical \w+(?: \w+)?|timeout|protection|recoverable transport|nexus) error, dev {_DEV}", "ce", "check_hardware", 45, "the disk could not serve a request"),
    rule("disk", "Buffer I/O error", rf"Buffer I/O error on dev(?:ice)? {_DEV}", "se", "check_hardware", 25, "data could not be read from or written to the disk"),
    rule("disk", "lost page write", rf"lost page write due to I/O error on {_DEV}", "se", "check_hardware", 25, "data could not be written to the disk"),
    rule("disk", "Sense Key", r"sd [\d:]+: \[(?P<device>\w+)\] .*Sense Key : (?:Medium|Hardware) Error", "ce", "replace", 55, "the disk reports an error of its medium or electronics"),
    rule("disk", "FAILED Result", r"sd [\d:]+: \[(?P<device>\w+)\] .*FAILED Result: hostbyte=(?!DID_OK)", "ce", "check_hardware", 45, "a command to the disk failed on the way"),
    rule("disk", "rejecting I/O to offline device", r"sd [\d:]+:(?: \[(?P<device>\w+)\])? rejecting I/O to offline device", "cf", "replace", 58, "the disk is offline"),
    # NVMe
    rule("disk", " timeout, ", rf"{_NVME}I/O (?:tag )?\d+ .*timeout, (?:aborting|completion polled|reset controller|disable controller)", "ce", "check_hardware", 45, "the disk did not answer in time"),
    rule("disk", "Abort status", rf"{_NVME}Abort status", "ii", "ignore", 5, "a command without an answer was aborted"),
    rule("disk", "controller is down", rf"{_NVME}controller is down; will reset", "cf", "check_hardware", 56, "the disk's controller is down"),
    rule("disk", "nvme", rf"{_NVME}(?:Removing after probe failure|Disabling device after reset failure|Device not ready; aborting|[Ff]ailed to set .*after reset|Device shutdown incomplete|[Ii]dentify Controller failed)", "cf", "replace", 58, "the disk did not come back after a reset"),
    rule("disk", "nvme", rf"nvme (?:\w+ )?(?:{ADDRESS}|(?P<device>nvme\w+)):? .*(?:Unable to change power state.*inaccessible|frozen state error detected)", "cf", "replace", 58, "the disk is gone from the bus"),
    rule("disk", "nvme", r"(?P<device>nvme\d+n\d+): .*(?:Unrecovered Read Error|Write Fault|Media|Internal Error)\b.*\(sct", "ce", "replace", 55, "the disk cannot read or write a place on its medium"),
    rule("disk", "nvme", r"(?P<device>nvme\d+n\d+): (?:I/O|\w+\(0x\w+\)).*\(sct 0x\w+ / sc 0x\w+\)", "ce", "check_hardware", 45, "the disk could not serve a request"),
    # SATA and SAS
    rule("disk", "exception Emask", r"(?P<device>ata\d+(?:\.\d+)?): exception Emask", "ce", "check_hardware", 42, "an error on the way to the disk"),
    rule("disk", "failed command", r"(?P<device>ata\d+(?:\.\d+)?): failed command", "se", "check_hardware", 25, "a command to the disk failed"),
    rule("disk", "reset failed", r"(?P<device>ata\d+(?:\.\d+)?): (?:reset failed, giving up|softreset failed)", "cf", "replace", 56, "the disk does not answer any more"),
    rule("disk", "COMRESET failed", r"(?P<device>ata\d+(?:\.\d+)?): COMRESET failed", "cf", "replace", 56, "the disk does not answer any more"),
    rule("disk", ": disable", r"(?P<device>ata\d+(?:\.\d+)?): disabled?\b", "cf", "replace", 56, "the disk does not answer any more"),
    rule("disk", "sas_cm", r"mpt[23]sas_cm\d+: .*(?:fault_state|SAS host is non-operational|diag reset: FAILED)", "cf", "check_hardware", 56, "the disk controller failed"),
    # file systems
    rule("fs", "fs error", r"(?:EXT[234]|FAT|F2FS)-fs error \(device (?P<device>[\w!.-]+)\)", "ce", "drain", 38, "the file system is damaged"),
    rule("fs", "emounting filesystem read-only", rf"{_FS}\S* \((?P<device>[\w!.-]+)\): Remounting filesystem read-only", "ce", "drain", 38, "the file system is now read-only"),
    rule("fs", "Aborting journal", r"(?:JBD2: )?Aborting journal on device (?P<device>[\w!-]+)", "ce", "drain", 38, "the file system stopped its journal"),
    rule("fs", "Detected IO errors", r"JBD2: Detected IO errors while flushing file data on (?P<device>[\w!.-]+)", "se", "check_hardware", 25, "data of the file system could not be written"),
    rule("fs", "I/O error", r"EXT4-fs warning \(device (?P<device>[\w!.-]+)\): .*I/O error", "sw", "check_hardware", 20, "data of the file system could not be written"),
    rule("fs", "XFS", r"XFS \((?P<device>[\w!.-]+)\): .*(?:I/O [Ee]rror|Corruption|corrupt|[Ss]hutting down|Internal error|shutdown)", "ce", "drain", 38, "the file system found an error or shut itself down"),
    rule("fs", "BTRFS", r"BTRFS:? (?:error|critical)(?: \(device (?P<device>[\w!.-]+)(?: state \w+)?\))?", "ce", "drain", 38, "the file system found an error"),
    rule("fs", "BTRFS", r"BTRFS(?: \w+)? \(device (?P<device>[\w!.-]+)(?: state \w+)?\): .*forced readonly", "ce", "drain", 38, "the file system is now read-only"),
    rule("fs", "ZFS", r"(?:ZFS|WARNING): Pool '(?P<device>[\w.-]+)' has encountered an uncorrectable I/O failure", "cf", "drain", 55, "the storage pool is suspended"),
    # RAID
    rule("raid", "Disk failure on", r"md/raid\d*:md\w+: Disk failure on (?P<device>\w+)", "ce", "replace", 52, "the disk was taken out of its array"),
    rule("raid", "super_written gets error", r"md(?:/raid\d*:(?P<device>md\w+))?: .*super_written gets error", "ce", "replace", 52, "the array cannot work any more"),
    rule("raid", "not enough operational", r"md(?:/raid\d*:(?P<device>md\w+))?: .*not enough operational", "ce", "replace", 52, "the array cannot work any more"),
    rule("raid", "annot continue operation", r"md(?:/raid\d*:(?P<device>md\w+))?: .*annot continue operation", "ce", "replace", 52, "the array cannot work any more"),
    rule("raid", "failed to run raid set", r"md(?:/raid\d*:(?P<device>md\w+))?: .*failed to run raid set", "ce", "replace", 52, "the array cannot work any more"),
    rule("raid", "degraded", r"md/raid\d*:(?P<device>md\w+): .*degraded", "iw", "watch", 20, "the array is short of a disk"),
    # over the network
    rule("storage", "not responding", r"(?:nfs|nfs4|lockd|RPC): server (?P<device>\S+) not responding", "cw", "watch", 35, "the file server does not answer"),
    rule("storage", ": server ", r"(?:nfs|nfs4|lockd): server (?P<device>\S+) OK", "ii", "ignore", 0, "the file server answers again"),
    rule("storage", "has not responded", r"CIFS: (?:VFS: )?\\*(?P<device>[\w.-]*)\\* has not responded", "cw", "watch", 35, "the file server does not answer"),
    rule("storage", "was lost", r"Lustre: (?P<device>\S+): Connection to .* was lost", "cw", "watch", 35, "the connection to a Lustre server was lost"),
    rule("storage", "Connection restored", r"Lustre: (?P<device>\S+): Connection restored", "ii", "ignore", 0, "the connection to a Lustre server is back"),
    rule("storage", "evicted", r"LustreError: .*(?:This client was evicted|client was evicted) by (?P<device>[^\s;]+)", "ce", "watch", 38, "a Lustre server evicted this client"),
    rule("storage", "LustreError", r"LustreError: .*(?:timeout|timed out|-5\b|-110\b|failed)", "se", "watch", 20, "a Lustre request failed"),
    rule("storage", "ceph", r"(?:libceph|ceph): (?P<device>(?:osd|mds|mon)\d+)\S* .*(?:down|hung|socket closed|session (?:lost|reset))", "cw", "watch", 33, "a Ceph server does not answer"),
    rule("storage", "fuse: ", r"fuse: .*(?:server|connection) .*(?:aborted|not responding)", "cw", "watch", 33, "a file system in user space stopped"),
    rule("storage", "iSCSI", r"connection\d+:\d+: (?:detected conn error|ping timeout)|.*iSCSI.*conn(?:ection)? error", "cw", "watch", 33, "the connection to a remote disk was lost"),
    rule("storage", "mmfs", r"mmfs(?:d|64)?: \[[EX]\]|mmfs: Error=", "cw", "watch", 33, "the cluster file system reports an error"),
)  # fmt: skip
"""Disks, their links and file systems, RAID, and file systems over the network."""


_AMD: Final = rf"(?:\[drm[^\]]*(?:\[amdgpu\])?\] )?(?:\*ERROR\* )?(?:amdgpu (?:(?P<device>{ADDRESS}): )?)?(?:amdgpu: )?(?:\{{\d+\}})?(?:\[drm[^\]]*(?:\[amdgpu\])?\] )?(?:\*ERROR\* )?"
_ASCEND: Final = r"\[ascend\]"

ACCELERATORS: Final = (
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
"""Accelerators that are not NVIDIA's: AMD, Ascend."""

SERVICES: Final = (
    rule("service", ".service: ", r"(?P<device>nvidia-(?:fabricmanager|persistenced|dcgm|imex)|nv-hostengine|dcgm)\.service: (?:Failed with result|Main process exited, code=(?:exited, status=[1-9]|killed|dumped))", "ce", "restart_service", 45, "a service of the GPU driver ended"),
    rule("service", "version mismatch", r".{0,200}[Dd]river/library version mismatch", "ce", "update_software", 40, "library and kernel module of the GPU driver have different versions"),
    rule("service", "fabric manager", r"Failed to start .{0,40}(?i:fabric manager)", "ce", "restart_service", 50, "the fabric manager does not start"),
)  # fmt: skip
"""Services of NVIDIA's driver."""
