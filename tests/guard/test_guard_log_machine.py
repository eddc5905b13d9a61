"""Lines of every other driver: network cards, disks, memory, PCIe, the kernel itself. Written from the drivers' formats."""

from __future__ import annotations

import pytest

from unidle.guard.log import TAKES_OUT, Finding, LogLine, findings

NIC = "0000:ab:00.0"


def said(*lines: str) -> list[Finding]:
    return list(findings(LogLine(k, f"[{k:5}.000001] {line}".encode()) for k, line in enumerate(lines, 1)))


CULPRITS = [
    (f"mlx5_core {NIC} enp171s0f0np0: Link down", "nic", "enp171s0f0np0"),
    (f"mlx5_core {NIC} mlx5_5: Port: 1 Link DOWN", "nic", "mlx5_5"),
    (f"mlx5_core {NIC}: Port module event: module 0, Cable unplugged", "nic", NIC),
    (f"mlx5_core {NIC}: Port module event[error]: module 0, Cable error, High Temperature", "nic", NIC),
    (f"mlx5_core {NIC}: Port module event[error]: module 1, Cable error, Power budget exceeded", "nic", NIC),
    ("mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature", "nic", ""),
    (f"mlx5_core {NIC}: poll_health:739:(pid 0): device's health compromised - reached miss count", "nic", NIC),
    (f"mlx5_core {NIC}: poll_health:701:(pid 0): Fatal error 1 detected", "nic", NIC),
    (f"mlx5_core {NIC}: wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource", "nic", NIC),
    (f"mlx5_core {NIC} enp171s0f0np0: TX timeout detected", "nic", "enp171s0f0np0"),
    (f"mlx5_core {NIC}: mlx5_health_try_recover:335:(pid 9): health recovery flow aborted", "nic", NIC),
    ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", "nic", "eth0"),
    ("bnxt_en 0000:3b:00.0 ens1f0np0: NIC Link is Down", "nic", "ens1f0np0"),
    ("ice 0000:c1:00.0 ens1f0: NIC Link is Down", "nic", "ens1f0"),
    ("igb 0000:07:00.0 eno1: igb: eno1 NIC Link is Down", "nic", "eno1"),
    ("tg3 0000:02:00.0 eth0: Link is down", "nic", "eth0"),
    ("bond0: (slave enp83s0f0np0): link status definitely down, disabling slave", "nic", "enp83s0f0np0"),
    ("bonding: bond0: link status definitely down for interface eth1, disabling it", "nic", ""),
    ("infiniband mlx5_0: Port 1 state changed: ACTIVE -> DOWN", "nic", "mlx5_0"),
    ("bond0: now running without any active interface!", "nic", "bond0"),
    ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400", "mce", "CPU 12"),
    ("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 8: be00000000010091", "mce", "CPU 2"),
    ("{1}[Hardware Error]: event severity: recoverable", "mce", ""),
    ("{3}[Hardware Error]: event severity: fatal", "mce", ""),
    ("EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x12)", "mce", "MC1"),
    ("Memory failure: 0x1a2b3c: recovery action for dirty LRU page: Failed", "mce", ""),
    ("pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)", "pcie", "0000:00:01.0"),
    ("pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0", "pcie", "0000:00:01.0"),
    ("pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0", "pcie", "0000:00:01.0"),
    ("pcieport 0000:00:01.0: pciehp: Slot(4): Link Down", "pcie", "0000:00:01.0"),
    ("pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000", "pcie", "0000:00:01.0"),
    ("blk_update_request: I/O error, dev sda, sector 1234 op 0x0:(READ) flags 0x0", "disk", "sda"),
    ("end_request: I/O error, dev sdb, sector 1", "disk", "sdb"),
    ("I/O error, dev nvme0n1, sector 1234 op 0x1:(WRITE)", "disk", "nvme0n1"),
    ("print_req_error: I/O error, dev sdb, sector 7", "disk", "sdb"),
    ("critical medium error, dev sdc, sector 77 op 0x0:(READ)", "disk", "sdc"),
    ("nvme nvme0: I/O 258 QID 4 timeout, aborting", "disk", "nvme0"),
    ("nvme nvme0: I/O tag 258 (1102) opcode 0x2 (I/O Cmd) QID 4 timeout, aborting req_op:READ(0) size:4096", "disk", "nvme0"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "disk", "nvme0"),
    ("nvme nvme0: Removing after probe failure status: -19", "disk", "nvme0"),
    ("nvme nvme1: Device not ready; aborting reset, CSTS=0x1", "disk", "nvme1"),
    ("ata1.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen", "disk", "ata1.00"),
    ("ata3: COMRESET failed (errno=-16)", "disk", "ata3"),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm bash: reading directory lblock 0", "fs", "sda1"),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "fs", "sda1"),
    ("Aborting journal on device sda1-8.", "fs", "sda1-8"),
    ('XFS (nvme0n1): metadata I/O error in "xfs_buf_ioend" at daddr 0x10 len 8 error 5', "fs", "nvme0n1"),
    ("XFS (dm-0): Corruption of in-memory data detected.  Shutting down filesystem", "fs", "dm-0"),
    ("BTRFS error (device sda1): bdev /dev/sda1 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0", "fs", "sda1"),
    ("md/raid1:md0: Disk failure on sdb1, disabling device.", "raid", "sdb1"),
    ("nfs: server 10.0.0.1 not responding, still trying", "storage", "10.0.0.1"),
    ("Lustre: work-OST0001-osc-ffff9: Connection to work-OST0001 (at 10.0.0.1@o2ib) was lost; in progress operations using this service will wait", "storage", "work-OST0001-osc-ffff9"),
    ("Kernel panic - not syncing: Fatal exception in interrupt", "panic", ""),
    ("BUG: unable to handle page fault for address: ffffc90000", "kernel_bug", ""),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "kernel_bug", ""),
    ("Oops: 0002 [#1] SMP NOPTI", "kernel_bug", ""),
    ("kernel BUG at mm/slub.c:4023!", "kernel_bug", ""),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:123]", "lockup", "CPU#3"),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", "lockup", "12"),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "lockup", ""),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "lockup", ""),
    ("thermal thermal_zone0: critical temperature reached (105 C), shutting down", "thermal", "thermal_zone0"),
    ("amdgpu 0000:68:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641", "amdgpu", "0000:68:00.0"),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3", "amdgpu", ""),
    ("amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", "amdgpu", "0000:68:00.0"),
    ("amdgpu 0000:68:00.0: amdgpu: socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block", "amdgpu", "0000:68:00.0"),
    ("amdgpu 0000:68:00.0: amdgpu: GPU reset(2) failed", "amdgpu", "0000:68:00.0"),
    ("amdgpu 0000:68:00.0: amdgpu: device lost from bus!", "gpu_lost", "0000:68:00.0"),
    ("[ascend] [ERROR] [devmm] [devmm_svm_device_fault 438] <kworker/u16:186:9871,9871> Vm fault failed. (hostpid=1; devid=0)", "npu", ""),
    ("[ascend] [devdrv] [heartbeat_check 120] device 3 heart beat lost", "npu", ""),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "device"), CULPRITS)
def test_a_fault_is_found_with_its_kind_and_device(line: str, kind: str, device: str):
    (found,) = said(line)
    assert (found.kind, found.device, found.role) == (kind, device, "culprit")
    assert found.code is None


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"mlx5_core {NIC} enp171s0f0np0: Link up", "nic"),
        (f"mlx5_core {NIC} mlx5_5: Port: 1 Link ACTIVE", "nic"),
        (f"mlx5_core {NIC}: Port module event: module 0, Cable plugged", "nic"),
        (
            f"mlx5_core {NIC}: mlx5_pcie_event:299:(pid 2): Detected insufficient power on the PCIe slot (27W).",
            "nic",
        ),
        (
            "bnxt_en 0000:3b:00.0 ens1f0np0: NIC Link is Up, 100000 Mbps full duplex, Flow control: none",
            "nic",
        ),
        ("bond0: (slave enp83s0f0np0): link status definitely up, 100000 Mbps full duplex", "nic"),
        ("mce: [Hardware Error]: Machine check events logged", "mce"),
        ("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 8: 8c00004000010092", "mce"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "mce"),
        ("{1}[Hardware Error]: event severity: corrected", "mce"),
        ("Memory failure: 0x1a2b3c: recovery action for free buddy page: Recovered", "mce"),
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", "pcie"),
        ("pcieport 0000:00:01.0: AER: Multiple Corrected error received: 0000:01:00.0", "pcie"),
        (
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            "pcie",
        ),
        ("mce: CPU12: Core temperature above threshold, cpu clock throttled (total events = 1)", "thermal"),
        ("amdgpu 0000:68:00.0: amdgpu: 3 correctable hardware errors detected in umc block", "amdgpu"),
        ("nfs: server 10.0.0.1 OK", "storage"),
    ],
)
def test_what_was_corrected_or_has_come_back_is_information(line: str, kind: str):
    (found,) = said(line)
    assert (found.kind, found.role) == (kind, "info")
    assert found.action not in TAKES_OUT


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Out of memory: Killed process 1234 (python) total-vm:123kB, anon-rss:1kB", "oom"),
        ("Memory cgroup out of memory: Killed process 1234 (python) total-vm:123kB", "oom"),
        ("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", "oom"),
        ("INFO: task python:1234 blocked for more than 120 seconds.", "hung_task"),
        ("Buffer I/O error on dev dm-0, logical block 1, lost async page write", "disk"),
        ("Memory failure: 0x1a2b3c: Sending SIGBUS to python:1234 due to hardware memory corruption", "mce"),
    ],
)
def test_what_happens_to_processes_is_a_symptom(line: str, kind: str):
    (found,) = said(line)
    assert (found.kind, found.role) == (kind, "symptom")
    assert found.action not in TAKES_OUT


@pytest.mark.parametrize(
    "line",
    [
        f"mlx5_core {NIC} mlx5_5: Port: 1 Link INIT",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2",
        "traps: python[1234] general protection fault ip:7f sp:7f error:0 in libc.so.6",
        "EXT4-fs (md127p3): re-mounted 0f3cd65a-338b-4574-bba3-ecef214e1917 r/w. Quota mode: none.",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
        "XFS (nvme0n1): Mounting V5 Filesystem",
        "XFS (nvme0n1): Ending clean mount",
        "workqueue: ib_cache_event_task [ib_core] hogged CPU for >10000us 4 times",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "nvme nvme0: 16/0/0 default/read/poll queues",
        "nvme nvme0: pci function 0000:01:00.0",
        "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
        "pci 0000:01:00.0: BAR 1: assigned [mem 0x10000000-0x1fffffff 64bit pref]",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "mce: [Hardware Error]: TSC 0 ADDR 12345 MISC 0",
        "{1}[Hardware Error]: section_type: memory error",
        "amdgpu 0000:68:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
        "amdgpu 0000:68:00.0: amdgpu: RAS: optional ras ta ucode is not available",
        "amdgpu 0000:68:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "NFS: Registering the id_resolver key type",
        "rcu: Hierarchical RCU implementation.",
        "thermal_sys: Registered thermal governor 'step_wise'",
        "audit: type=1400 audit(1.2:3): apparmor=\"DENIED\" operation=\"open\" name=\"I/O error, dev sda\"",
        "systemd[1]: Started a check for: Kernel panic - not syncing",
    ],
)  # fmt: skip
def test_the_daily_talk_of_drivers_is_no_finding(line: str):
    assert said(line) == []


def test_a_file_system_that_fails_after_its_disk_is_a_symptom_of_it():
    disk, fs, ro = said(
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
        "I/O error, dev nvme0n1, sector 1234 op 0x1:(WRITE)",
        "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm bash: reading directory",
    )
    assert (disk.role, fs.role, ro.role) == ("culprit", "symptom", "symptom")
    assert ro.cause_line in (1, 2)


def test_a_link_that_goes_down_with_its_card_is_a_symptom():
    lines = said(
        f"mlx5_core {NIC} enp171s0f0np0: Link up",
        f"mlx5_core {NIC}: poll_health:701:(pid 0): Fatal error 1 detected",
        f"mlx5_core {NIC} enp171s0f0np0: Link down",
    )
    assert [f.role for f in lines] == ["info", "culprit", "symptom"]


def test_services_of_the_driver_are_believed_from_systemd_only():
    text = "nvidia-fabricmanager.service: Failed with result 'exit-code'."
    (found,) = findings([LogLine(1, f"Dec  2 11:38:47 worker4 systemd[1]: {text}".encode())])
    assert (found.kind, found.device, found.action) == ("service", "nvidia-fabricmanager", "restart_service")
    assert list(findings([LogLine(1, f"Dec  2 11:38:47 worker4 cat[1]: {text}".encode())])) == []
    mismatch = b"Dec  2 11:38:47 worker4 nvidia-persistenced[9]: Failed to query NVIDIA devices: Driver/library version mismatch"
    (found,) = findings([LogLine(1, mismatch)])
    assert found.action == "update_software"
