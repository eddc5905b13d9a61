"""The machine itself: memory and processor checks, PCIe, heat and power, and a kernel in trouble."""

from __future__ import annotations

from typing import Final

from unidle.guard.log.pci import ADDRESS
from unidle.guard.log.rules import rule

_HW: Final = r"(?:\{\d+\})?(?:mce: )?\[Hardware Error\]: "
_PORT: Final = rf"(?:pcieport|pci|[\w-]+) (?P<device>{ADDRESS}): "

RULES: Final = (
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
