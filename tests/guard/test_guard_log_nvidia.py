"""What lines of NVIDIA's drivers mean, alone and after each other. Lines in the drivers' documented forms."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from unidle.guard.log import TAKES_OUT, Finding, LogLine, findings
from unidle.guard.log.model import from_ns
from unidle.guard.log.nvlink5 import decode, rules
from unidle.guard.log.xids import table, xid

GPU = "0000:3b:00.0"


def said(*lines: str) -> list[Finding]:
    return list(findings(LogLine(k, line.encode()) for k, line in enumerate(lines, 1)))


def one(line: str) -> Finding:
    (found,) = said(line)
    return found


def an_xid(
    code: int,
    rest: str = "pid=12, name=python, Ch 00000008",
    *,
    at: float = 10,
    where: str = "PCI:0000:3b:00",
) -> str:
    return f"[{at:12.6f}] NVRM: Xid ({where}): {code}, {rest}"


@pytest.mark.parametrize(
    ("where", "device"),
    [
        ("PCI:0000:cb:00", "0000:cb:00.0"),
        ("PCI:0000:CB:00", "0000:cb:00.0"),
        ("0000:03:00", "0000:03:00.0"),
        ("PCI:0000:cb:00.0", "0000:cb:00.0"),
        ("PCI:00000000:cb:00.0", "0000:cb:00.0"),
        ("PCI:00010000:01:00", "10000:01:00.0"),
        ("PCI:0018:01:00", "0018:01:00.0"),
        ("PCI:0000:00:0e", "0000:00:0e.0"),
        ("PCI:0000:01:00 GPU-I:05", "0000:01:00.0"),
        ("PCI:0000:01:00 GPU-I:05 GPU-CI:00", "0000:01:00.0"),
        ("PCI:0000:01:00, GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b", "0000:01:00.0"),
        ("GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b", "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"),
    ],
)
def test_the_device_is_named_as_sysfs_names_it(where: str, device: str):
    found = one(an_xid(79, where=where))
    assert (found.kind, found.code, found.device) == ("xid", 79, device)


def test_a_uuid_is_turned_into_the_address_that_the_driver_told_before():
    uuid = "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"
    (found,) = said(f"[1.0] NVRM: GPU at PCI:0000:91:00: {uuid}", an_xid(79, where=uuid))
    assert found.device == "0000:91:00.0"


@pytest.mark.parametrize(
    "rest",
    [
        "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "GPU has fallen off the bus.",
        "pid=1234, GPU has fallen off the bus.",
        "",
    ],
)
def test_an_xid_needs_neither_pid_nor_name_nor_words(rest: str):
    assert one(an_xid(79, rest)).code == 79
    assert one(f"NVRM: Xid (PCI:0000:3b:00): 79{rest and ', '}{rest}").code == 79


APPLICATION = (8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 80, 94)


@pytest.mark.parametrize("code", APPLICATION)
def test_an_error_of_the_application_never_takes_hardware_out(code: int):
    found = one(an_xid(code))
    assert found.action in ("restart_app", "ignore")
    assert found.action not in TAKES_OUT


@pytest.mark.parametrize("code", [63, 92, 93, 106, 121, 162])
def test_what_nvidia_says_to_ignore_is_information(code: int):
    found = one(an_xid(code))
    assert found.role == "info"
    assert found.action not in TAKES_OUT


@pytest.mark.parametrize("code", [46, 48, 61, 62, 64, 95, 109, 119, 120, 140, 143, 158])
def test_a_fault_inside_the_gpu_asks_for_a_reset(code: int):
    found = one(an_xid(code))
    assert (found.role, found.action) == ("culprit", "reset_gpu")


def test_links_machines_and_unknown_codes_have_actions_of_their_own():
    assert one(an_xid(74)).action == "check_nvlink"
    assert one(an_xid(79)).action == "reboot_node"
    assert one(an_xid(54)).action == "check_hardware"
    assert one(an_xid(999)).action == "contact_support"
    assert xid(999).mnemonic == ""


def test_cleaning_up_is_a_symptom_of_the_xid_that_it_names():
    cause, symptom = said(
        an_xid(145, "RLW_SRC_TRACK Fatal XC0 i0 Link 3 (0x000000e2 0x00000001 0x0 0x0 0x0 0x0)"),
        an_xid(45, "pid=9, name=python3, Ch 0000000c caused by previous Xid 145", at=11),
    )
    assert (cause.role, cause.action) == ("culprit", "reset_gpu")
    assert (symptom.role, symptom.action, symptom.cause_code, symptom.cause_line) == (
        "symptom",
        "ignore",
        145,
        1,
    )


def test_cleaning_up_is_a_symptom_even_where_its_cause_is_not_in_the_log():
    alone = one(an_xid(45, "pid=9, name=python3, Ch 0000000c caused by previous Xid 145"))
    assert (alone.role, alone.cause_code, alone.cause_line) == ("symptom", 145, None)
    assert one(an_xid(45)).role == "symptom"


def test_a_lesser_fault_after_a_deep_one_is_its_symptom_but_not_before_it_nor_elsewhere():
    assert [f.role for f in said(an_xid(79), an_xid(31, at=11))] == ["culprit", "symptom"]
    assert [f.role for f in said(an_xid(31), an_xid(79, at=11))] == ["culprit", "culprit"]
    assert [f.role for f in said(an_xid(79), an_xid(31, at=11, where="PCI:0000:4c:00"))] == ["culprit"] * 2
    assert [f.role for f in said(an_xid(79), an_xid(31, at=4000))] == ["culprit"] * 2
    assert [f.role for f in said(an_xid(48), an_xid(94, at=11), an_xid(63, at=12))] == [
        "culprit",
        "symptom",
        "info",
    ]


def test_nothing_of_the_last_boot_explains_what_follows_a_boot():
    assert [(f.role, f.boot) for f in said(an_xid(79, at=500), an_xid(31, at=20))] == [
        ("culprit", 0),
        ("culprit", 1),
    ]
    after = said(an_xid(79, at=500), "[    0.000000] Linux version 6.8.0 (build@host)", an_xid(31, at=501))
    assert [f.boot for f in after] == [0, 1]
    marked = said("NVRM: Xid (PCI:0000:3b:00): 79, x", "-- Reboot --", "NVRM: Xid (PCI:0000:3b:00): 31, x")
    assert [f.role for f in marked] == ["culprit", "culprit"]


def test_processors_that_print_out_of_order_are_no_boot():
    assert [f.boot for f in said(an_xid(79, at=500.0004), an_xid(31, at=500.0001))] == [0, 0]


LOST = [
    "[1.0] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    "[1.0] NVRM: GPU at PCI:0000:3b:00 has fallen off the bus.",
    "[1.0] NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands.",
    "[1.0] nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    "[1.0] nvidia 0000:3b:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
    "[1.0] NVRM: Attempting to remove device 0000:3b:00.0 with non-zero usage count!",
]


@pytest.mark.parametrize("line", LOST)
def test_a_gpu_that_is_gone_is_found_without_an_xid(line: str):
    found = one(line)
    assert (found.kind, found.code, found.device, found.action) == ("gpu_lost", None, GPU, "reboot_node")


def test_a_loss_told_in_three_lines_is_one_finding_with_the_gpu_of_the_first():
    (found,) = said(
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:3b:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (found.line, found.kind, found.device) == (3, "gpu_lost", GPU)
    (found,) = said(
        "[26.0] NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1b06)",
        "[26.1] NVRM: installed in this system has fallen off the bus and",
        "[26.2] NVRM: is not responding to commands.",
    )
    assert (found.line, found.device) == (2, GPU)
    assert one("               NVRM: fallen off the bus and is not responding to commands.").device == ""


def test_the_same_loss_told_again_is_a_symptom():
    first, again = said(an_xid(79), "[10.1] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    assert (first.role, again.role, again.cause_line) == ("culprit", "symptom", 1)
    other = said(an_xid(79), "[10.1] NVRM: GPU 0000:4c:00.0: GPU has fallen off the bus.")
    assert [f.role for f in other] == ["culprit", "culprit"]
    echo = said(
        an_xid(79),
        "[10.1] NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0F)",
    )
    assert len(echo) == 1


def test_what_only_follows_from_lines_before_a_time_counts_for_itself_after_it():
    found = said(an_xid(79), an_xid(79, at=20), an_xid(31, at=21))
    assert [(f.role, f.action) for f in found[1:]] == [("symptom", "ignore"), ("symptom", "ignore")]
    assert from_ns(found, 10_000_000_000) == found
    later = from_ns(found, 15_000_000_000)
    assert [(f.line, f.code, f.role, f.action) for f in later] == [
        (2, 79, "culprit", "reboot_node"),
        (3, 31, "culprit", "restart_app"),
    ]


@pytest.mark.parametrize(
    ("to", "action"),
    [
        ("0x0 (None)", "ignore"),
        ("0x1 (GPU Reset Required)", "reset_gpu"),
        ("0x1 (PF FLR)", "reset_gpu"),
        ("0x2 (Node Reboot Required)", "reboot_node"),
        ("0x2 (OS Reboot)", "reboot_node"),
        ("0x3 (Drain P2P)", "drain"),
        ("0x4 (Drain and Reset)", "reset_gpu"),
        ("0x9 (Bus Reset)", "reset_gpu"),
        ("0x9 (Something New)", "drain"),
    ],
)
def test_of_a_changed_recovery_action_the_second_counts(to: str, action: str):
    found = one(an_xid(154, f"GPU recovery action changed from 0x2 (Node Reboot Required) to {to}"))
    assert (found.code, found.action, found.verdict) == (154, action, action)
    assert found.role == (
        "info" if action == "ignore" else "culprit"
    )  # nothing else says that the GPU is ill
    judged = said(an_xid(119), an_xid(154, f"GPU recovery action changed from 0x0 (None) to {to}", at=11))[1]
    assert (judged.role, judged.cause_code, judged.cause_line) == ("info", 119, 1)


SXID = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, "


def test_three_lines_of_an_nvswitch_are_one_event():
    triplet = [
        f"[38.178] {SXID}Non-fatal, Link 44 Minion Link DLREQ interrupt",
        f"[38.180] {SXID}Severity 0 Engine instance 44 Sub-engine instance 00",
        f"[38.183] {SXID}Data {{0x0000002c, 0x0000002c, 0x00000000, 0x0000002c, 0x80005302}}",
    ]
    (found,) = said(*triplet)
    assert (found.kind, found.code, found.device, found.role, found.action) == (
        "sxid",
        22013,
        "0000:04:00.0",
        "info",
        "ignore",
    )
    assert [f.line for f in said(*triplet, *triplet)] == [1, 4]
    two_links = [
        triplet[0],
        triplet[0].replace("44", "45"),
        triplet[1],
        triplet[1].replace("44", "45"),
        *triplet[2:] * 2,
    ]
    assert [f.line for f in said(*two_links)] == [1, 2]
    assert [f.line for f in said(triplet[2], *triplet)] == [
        1,
        2,
    ]  # the first is what is left of an event before the log
    late = triplet[2].replace("38.183", "4038.183")
    assert [f.line for f in said(*triplet[:2], late)] == [1, 3]


def test_a_fatal_event_of_a_switch_is_a_culprit_unless_a_gpu_was_lost_before():
    fatal = "[11.0] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
    assert (one(fatal).role, one(fatal).action) == ("culprit", "reboot_node")
    assert [f.role for f in said(an_xid(79), fatal)] == ["culprit", "symptom"]
    assert (
        one(
            "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00"
        ).action
        == "reboot_node"
    )


def test_the_fabric_manager_tells_of_the_same_event_and_is_believed_only_in_its_own_name():
    text = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33"
    own = f"[Jul 23 2024 07:53:55] [ERROR] [tid 841] {text}"
    assert (one(own).kind, one(own).code, one(own).device, one(own).role) == (
        "sxid",
        20034,
        "0000:86:00.0",
        "culprit",
    )
    assert one(f"Jul 23 07:53:55 node7 nv-fabricmanager[841]: {text}").code == 20034
    assert said(f"Jul 23 07:53:55 node7 my-watcher[841]: {text}") == []
    kernel = "Jul 23 07:53:54 node7 kernel: nvidia-nvswitch1: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 33 LTSSM Fault Up"
    assert [f.role for f in said(kernel, f"Jul 23 07:53:55 node7 nv-fabricmanager[841]: {text}")] == [
        "culprit",
        "symptom",
    ]
    gave_up = "[Jul 09 2024 18:14:07] [ERROR] [tid 12727] detected number of NVSwitches don't match with any supported system topology, aborting fabric manager"
    assert (one(gave_up).kind, one(gave_up).action) == ("fabric", "restart_service")


def test_a_gpu_that_cannot_be_initialised_is_told_once_and_after_its_cause():
    first = "[ 5.1] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2028)"
    second = "[ 5.2] NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor number 0"
    assert [f.line for f in said(first, second)] == [1]
    assert [f.role for f in said(an_xid(143, at=5), first)] == ["culprit", "symptom"]


@pytest.mark.parametrize(
    ("line", "kind", "device"),
    [
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2028)", "gpu_init", GPU),
        ("NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor number 0", "gpu_init", GPU),
        ("NVRM: RmInitAdapter failed! (0x27:0x38:1193)", "gpu_init", ""),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", "gpu_init", ""),
        ("NVRM: API mismatch: the client has the version 535.183.01, but", "driver", ""),
        (
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
            "driver",
            "",
        ),
    ],
)
def test_a_driver_that_cannot_work_is_found(line: str, kind: str, device: str):
    found = one(f"[ 5.1] {line}")
    assert (found.kind, found.device, found.role) == (kind, device, "culprit")


@pytest.mark.parametrize(
    ("code", "registers", "action", "link"),
    [
        (
            145,
            "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1 0x0 0x100000 0x4)",
            "ignore",
            13,
        ),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x0 0x0 0x0 0x0)", "ignore", 0),
        (144, "SAW_MVB Fatal XC0 i0 Link 02 (0x00000021 0x00000002 0x0 0x0 0x0 0x0)", "reset_gpu", 2),
        (
            149,
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x0 0x0 0x0 0x0)",
            "reset_gpu",
            1,
        ),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x0 0x0 0x0 0x0)", "ignore", 0),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x0 0x0 0x0 0x0)", "reset_gpu", -1),
        (149, "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", "reset_gpu", 1),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 0x0 0x0)", "watch", 0),
        (145, "RLW_REMAP Fatal XC1 i0 Link 10 (0x00000082 0x00000040 0x0 0x0 0x0 0x0)", "reset_gpu", 10),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 05 (0x00000226 0x00000001 0x0 0x0)", "check_nvlink", 5),
    ],
)
def test_registers_of_nvlink_5_say_what_to_do(code: int, registers: str, action: str, link: int):
    found = one(an_xid(code, f"pid=9, name=ray::WorkerDict, {registers}"))
    read_out = decode(code, registers)
    assert read_out is not None
    assert (found.action, read_out.link) == (action, link)


@pytest.mark.parametrize(
    ("registers", "action", "role"),
    [
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "check_nvlink", "culprit"),
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "ignore", "info"),
        ("0x100002, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "watch", "info"),
        ("0x1, 0x0, 0x2, 0x0, 0x0, 0x0, 0x0", "check_nvlink", "culprit"),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "check_nvlink", "culprit"),
    ],
)
def test_registers_of_older_nvlinks_say_what_is_of_no_harm(registers: str, action: str, role: str):
    found = one(an_xid(74, f"pid=1, name=x, NVLink: fatal error detected on link 6({registers})"))
    assert (found.action, found.role) == (action, role)


def test_of_several_bits_of_a_status_the_worst_decides():
    both = "RLW_RSPCOL Fatal XC0 i0 Link 1 (0x000000a2 0x00000003 0x0 0x0 0x0 0x0)"
    assert one(an_xid(145, both)).action == "reset_gpu"


def catalogue(name: str) -> Iterable[dict[str, str]]:
    import csv

    given = os.environ.get("UNIDLE_DATA")
    assert given is not None
    with (Path(given) / "faults" / name).open(newline="") as file:
        yield from csv.DictReader(file)


def test_our_tables_are_those_that_nvidia_published():
    """Against the catalogue where ``UNIDLE_DATA`` has it; the shape of our own tables always."""
    assert len(table()) == 172
    assert len(rules()) == 94
    assert {r.xid for r in rules()} == set(range(144, 151))
    if "UNIDLE_DATA" not in os.environ:
        return
    for row in catalogue("xid_catalog.csv"):
        ours = xid(int(row["code"]))
        assert ours.mnemonic == row["mnemonic"].split("/")[0].strip()
        word = re.match(r"[A-Z][A-Z0-9_]+", row["immediate"])
        assert ours.immediate == (word[0] if word else "-"), row["code"]
    published = [
        (int(r["xid"]), r["unit"], int(r["errorstatus"], 16), r["immediate"])
        for r in catalogue("nvlink5_rules.csv")
    ]
    assert [(r.xid, "/".join(r.units), r.status, r.immediate) for r in rules()] == published
