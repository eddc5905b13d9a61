"""Network cards, InfiniBand and bonds, as their drivers print them."""

from __future__ import annotations

from typing import Final

from unidle.guard.log.pci import ADDRESS
from unidle.guard.log.rules import rule

_MLX: Final = rf"(?:mlx[45]_(?:core|en|ib)(?:\.\w+)? ?(?:{ADDRESS}(?::\s|\s|(?=:)))?:?\s*)?"
_FUNCTION: Final = r"(?:[\w.]+:\d+:\(pid \d+\): ?)?(?:[\w.]+:\d+: ?)?"
_DRIVERS: Final = r"(?:bnxt_en|ice|i40e|ixgbe|ixgbevf|igb|igc|e1000e?|tg3|bnx2x|qede|ena|ionic|hns3|iavf|atlantic|r8169|cxgb4|enic|nfp|fbnic|mana|gve)"
_IFACE: Final = r"(?P<device>[A-Za-z][\w.@-]{0,20})"

RULES: Final = (
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
