"""Disks, their links and file systems, RAID, and file systems over the network."""

from __future__ import annotations

from typing import Final

from unidle.guard.log.pci import ADDRESS
from unidle.guard.log.rules import rule

_DEV: Final = r"(?P<device>[A-Za-z][\w!.-]*)"
_NVME: Final = r"nvme (?P<device>nvme\d+): "
_FS: Final = r"(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs|FAT-fs|bcachefs)"

RULES: Final = (
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
