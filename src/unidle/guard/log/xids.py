"""What each Xid means for a fleet: the catalogue's action in our vocabulary, a role, a rank, and short words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from unidle.guard.log.model import IN_WORDS, Action, Grade, Role, Severity

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

    @property
    def grade(self) -> Grade:
        return Grade(self.role, self.action, self.severity, self.rank)


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


CATALOGUE: Final = """\
1 ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD CONTACT_SUPPORT -
2 ROBUST_CHANNEL_FIFO_ERROR_SW_METHOD CONTACT_SUPPORT -
3 ROBUST_CHANNEL_FIFO_ERROR_UNK_METHOD CONTACT_SUPPORT -
4 ROBUST_CHANNEL_FIFO_ERROR_CHANNEL_BUSY CONTACT_SUPPORT -
5 ROBUST_CHANNEL_FIFO_ERROR_RUNOUT_OVERFLOW CONTACT_SUPPORT -
6 ROBUST_CHANNEL_FIFO_ERROR_PARSE_ERR CONTACT_SUPPORT -
7 ROBUST_CHANNEL_FIFO_ERROR_PTE_ERR CONTACT_SUPPORT -
8 ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT RESTART_APP CONTACT_SUPPORT
9 ROBUST_CHANNEL_GR_ERROR_INSTANCE CONTACT_SUPPORT -
10 ROBUST_CHANNEL_GR_ERROR_SINGLE_STEP CONTACT_SUPPORT -
11 ROBUST_CHANNEL_GR_ERROR_MISSING_HW RESTART_APP CHECK_APP/CUDA
12 ROBUST_CHANNEL_GR_ERROR_SW_METHOD CONTACT_SUPPORT -
13 ROBUST_CHANNEL_GR_EXCEPTION RESTART_APP WORKFLOW_XID_13
14 ROBUST_CHANNEL_FAKE_ERROR IGNORE CONTACT_SUPPORT
15 ROBUST_CHANNEL_SCANLINE_TIMEOUT CONTACT_SUPPORT -
16 ROBUST_CHANNEL_VBLANK_CALLBACK_TIMEOUT CONTACT_SUPPORT CONTACT_SUPPORT
17 ROBUST_CHANNEL_PARAMETER_ERROR CONTACT_SUPPORT -
18 ROBUST_CHANNEL_BUS_MASTER_TIMEOUT_ERROR CONTACT_SUPPORT -
19 ROBUST_CHANNEL_DISP_MISSED_NOTIFIER CONTACT_SUPPORT -
20 ROBUST_CHANNEL_MPEG_ERROR_SW_METHOD CONTACT_SUPPORT -
21 ROBUST_CHANNEL_ME_ERROR_SW_METHOD CONTACT_SUPPORT -
22 ROBUST_CHANNEL_VP_ERROR_SW_METHOD CONTACT_SUPPORT -
23 ROBUST_CHANNEL_RC_LOGGING_ENABLED CONTACT_SUPPORT -
24 ROBUST_CHANNEL_GR_SEMAPHORE_TIMEOUT CONTACT_SUPPORT -
25 ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY RESTART_APP CHECK_APP/CUDA
26 ROBUST_CHANNEL_FIFO_ERROR_FBISTATE_TIMEOUT CONTACT_SUPPORT -
27 ROBUST_CHANNEL_VP_ERROR CONTACT_SUPPORT -
28 ROBUST_CHANNEL_VP2_ERROR CONTACT_SUPPORT -
29 ROBUST_CHANNEL_BSP_ERROR CONTACT_SUPPORT -
30 ROBUST_CHANNEL_BAD_ADDR_ACCESS CONTACT_SUPPORT -
31 ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT RESTART_APP WORKFLOW_XID_31
32 ROBUST_CHANNEL_PBDMA_ERROR RESTART_APP CHECK_APP/CUDA
33 ROBUST_CHANNEL_SEC_ERROR CONTACT_SUPPORT -
34 ROBUST_CHANNEL_MSVLD_ERROR CONTACT_SUPPORT -
35 ROBUST_CHANNEL_MSPDEC_ERROR CONTACT_SUPPORT -
36 ROBUST_CHANNEL_MSPPP_ERROR CONTACT_SUPPORT -
37 ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD IGNORE CHECK_APP/CUDA
38 ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT IGNORE CONTACT_SUPPORT
39 ROBUST_CHANNEL_CE0_ERROR RESTART_APP CONTACT_SUPPORT
40 ROBUST_CHANNEL_CE1_ERROR RESTART_APP CONTACT_SUPPORT
41 ROBUST_CHANNEL_CE2_ERROR RESTART_APP CONTACT_SUPPORT
42 ROBUST_CHANNEL_VIC_ERROR CONTACT_SUPPORT -
43 ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR IGNORE CONTACT_SUPPORT
44 ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW IGNORE CONTACT_SUPPORT
45 ROBUST_CHANNEL_PREEMPTIVE_REMOVAL WORKFLOW_XID_45 RESTART_FM
46 ROBUST_CHANNEL_GPU_TIMEOUT_ERROR RESET_GPU CONTACT_SUPPORT
47 ROBUST_CHANNEL_NVENC0_ERROR CONTACT_SUPPORT -
48 ROBUST_CHANNEL_GPU_ECC_DBE WORKFLOW_XID_48 WORKFLOW_XID_48
49 SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY CONTACT_SUPPORT -
50 SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR CONTACT_SUPPORT -
51 SILENT_RUNNING_STRESS_TEST_FAILURE CONTACT_SUPPORT -
52 SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE CONTACT_SUPPORT -
53 SILENT_RUNNING_TEMP_REDUCED_CLOCKING CONTACT_SUPPORT -
54 SILENT_RUNNING_PWR_REDUCED_CLOCKING CHECK_MECHANICALS CONTACT_SUPPORT
55 SILENT_RUNNING_TEMPERATURE_READ_ERROR CONTACT_SUPPORT -
56 DISPLAY_CHANNEL_EXCEPTION CONTACT_SUPPORT -
57 FB_LINK_TRAINING_FAILURE_ERROR CONTACT_SUPPORT -
58 FB_MEMORY_ERROR CONTACT_SUPPORT -
59 PMU_ERROR CONTACT_SUPPORT -
60 ROBUST_CHANNEL_SEC2_ERROR RESTART_APP INVESTIGATE_SW
61 PMU_BREAKPOINT CONTACT_SUPPORT -
62 PMU_HALT_ERROR RESET_GPU CONTACT_SUPPORT
63 INFOROM_DRAM_RETIREMENT_EVENT IGNORE IGNORE
64 INFOROM_DRAM_RETIREMENT_FAILURE RESET_GPU CONTACT_SUPPORT
65 ROBUST_CHANNEL_NVENC1_ERROR CONTACT_SUPPORT -
66 ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION IGNORE INVESTIGATE_SW
67 ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION IGNORE CONTACT_SUPPORT
68 ROBUST_CHANNEL_NVDEC0_ERROR RESTART_APP CONTACT_SUPPORT
69 ROBUST_CHANNEL_GR_CLASS_ERROR RESTART_APP CHECK_APP/CUDA
70 ROBUST_CHANNEL_CE3_ERROR RESTART_APP CONTACT_SUPPORT
71 ROBUST_CHANNEL_CE4_ERROR RESTART_APP CONTACT_SUPPORT
72 ROBUST_CHANNEL_CE5_ERROR RESTART_APP CONTACT_SUPPORT
73 ROBUST_CHANNEL_NVENC2_ERROR CONTACT_SUPPORT -
74 NVLINK_ERROR WORKFLOW_NVLINK_ERR CONTACT_SUPPORT
75 ROBUST_CHANNEL_CE6_ERROR RESTART_APP CONTACT_SUPPORT
76 ROBUST_CHANNEL_CE7_ERROR RESTART_APP CONTACT_SUPPORT
77 ROBUST_CHANNEL_CE8_ERROR RESTART_APP CONTACT_SUPPORT
78 VGPU_START_ERROR UPDATE_SWFW UPDATE_SWFW
79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS RESTART_BM CONTACT_SUPPORT
80 PBDMA_PUSHBUFFER_CRC_MISMATCH RESTART_APP CHECK_APP/CUDA
81 ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR CONTACT_SUPPORT -
82 ROBUST_CHANNEL_NVJPG0_ERROR RESTART_APP CONTACT_SUPPORT
83 ROBUST_CHANNEL_NVDEC1_ERROR RESTART_APP CONTACT_SUPPORT
84 ROBUST_CHANNEL_NVDEC2_ERROR RESTART_APP CONTACT_SUPPORT
85 ROBUST_CHANNEL_CE9_ERROR RESTART_APP CONTACT_SUPPORT
86 ROBUST_CHANNEL_OFA0_ERROR RESTART_APP CONTACT_SUPPORT
87 NVTELEMETRY_DRIVER_REPORT CONTACT_SUPPORT -
88 ROBUST_CHANNEL_NVDEC3_ERROR RESTART_APP CONTACT_SUPPORT
89 ROBUST_CHANNEL_NVDEC4_ERROR RESTART_APP CONTACT_SUPPORT
90 LTC_ERROR CONTACT_SUPPORT -
91 RESERVED_XID CONTACT_SUPPORT -
92 EXCESSIVE_SBE_INTERRUPTS IGNORE CONTACT_SUPPORT
93 INFOROM_ERASE_LIMIT_EXCEEDED IGNORE CONTACT_SUPPORT
94 ROBUST_CHANNEL_CONTAINED_ERROR RESTART_APP IGNORE
95 ROBUST_CHANNEL_UNCONTAINED_ERROR RESET_GPU IGNORE
96 ROBUST_CHANNEL_NVDEC5_ERROR RESTART_APP CONTACT_SUPPORT
97 ROBUST_CHANNEL_NVDEC6_ERROR RESTART_APP CONTACT_SUPPORT
98 ROBUST_CHANNEL_NVDEC7_ERROR RESTART_APP CONTACT_SUPPORT
99 ROBUST_CHANNEL_NVJPG1_ERROR RESTART_APP CONTACT_SUPPORT
100 ROBUST_CHANNEL_NVJPG2_ERROR RESTART_APP CONTACT_SUPPORT
101 ROBUST_CHANNEL_NVJPG3_ERROR RESTART_APP CONTACT_SUPPORT
102 ROBUST_CHANNEL_NVJPG4_ERROR RESTART_APP CONTACT_SUPPORT
103 ROBUST_CHANNEL_NVJPG5_ERROR RESTART_APP CONTACT_SUPPORT
104 ROBUST_CHANNEL_NVJPG6_ERROR RESTART_APP CONTACT_SUPPORT
105 ROBUST_CHANNEL_NVJPG7_ERROR RESTART_APP CONTACT_SUPPORT
106 SMBPBI_TEST_MESSAGE IGNORE IGNORE
107 SMBPBI_TEST_MESSAGE_SILENT IGNORE IGNORE
108 NVLINK_REMOTE_TRANSLATION_ERROR IGNORE XID_137_FLOW
109 ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR RESET_GPU CONTACT_SUPPORT
110 SEC_FAULT_ERROR RESET_GPU INVESTIGATE_SW
111 BUNDLE_ERROR_EVENT CONTACT_SUPPORT -
112 DISP_SUPERVISOR_ERROR CONTACT_SUPPORT -
113 DP_LT_FAILURE CONTACT_SUPPORT -
114 HEAD_RG_UNDERFLOW CONTACT_SUPPORT -
115 CORE_CHANNEL_REGS CONTACT_SUPPORT -
116 WINDOW_CHANNEL_REGS CONTACT_SUPPORT -
117 CURSOR_CHANNEL_REGS CONTACT_SUPPORT -
118 HEAD_REGS CONTACT_SUPPORT -
119 GSP_RPC_TIMEOUT RESET_GPU INVESTIGATE_SW
120 GSP_ERROR RESET_GPU INVESTIGATE_SW
121 C2C_ERROR IGNORE CONTACT_SUPPORT
122 SPI_PMU_RPC_READ_FAIL CONTACT_SUPPORT -
123 SPI_PMU_RPC_WRITE_FAIL CONTACT_SUPPORT -
124 SPI_PMU_RPC_ERASE_FAIL CONTACT_SUPPORT -
125 INFOROM_FS_ERROR CONTACT_SUPPORT -
126 ROBUST_CHANNEL_CE10_ERROR RESTART_APP CONTACT_SUPPORT
127 ROBUST_CHANNEL_CE11_ERROR RESTART_APP CONTACT_SUPPORT
128 ROBUST_CHANNEL_CE12_ERROR RESTART_APP CONTACT_SUPPORT
129 ROBUST_CHANNEL_CE13_ERROR RESTART_APP CONTACT_SUPPORT
130 ROBUST_CHANNEL_CE14_ERROR RESTART_APP CONTACT_SUPPORT
131 ROBUST_CHANNEL_CE15_ERROR RESTART_APP CONTACT_SUPPORT
132 ROBUST_CHANNEL_CE16_ERROR RESTART_APP CONTACT_SUPPORT
133 ROBUST_CHANNEL_CE17_ERROR RESTART_APP CONTACT_SUPPORT
134 ROBUST_CHANNEL_CE18_ERROR RESTART_APP CONTACT_SUPPORT
135 ROBUST_CHANNEL_CE19_ERROR RESTART_APP CONTACT_SUPPORT
136 ALI_TRAINING_FAIL RESET_GPU INVESTIGATE_LINK_SI
137 NVLINK_PRIV_ERR IGNORE XID_137_FLOW
138 ROBUST_CHANNEL_DLA_ERROR CONTACT_SUPPORT -
139 ROBUST_CHANNEL_OFA1_ERROR RESTART_APP CONTACT_SUPPORT
140 UNRECOVERABLE_ECC_ERROR_ESCAPE RESET_GPU CONTACT_SUPPORT
141 ROBUST_CHANNEL_FAST_PATH_ERROR IGNORE CONTACT_SUPPORT
142 ROBUST_CHANNEL_NVENC3_ERROR CONTACT_SUPPORT -
143 GPU_INIT_ERROR RESET_GPU CONTACT_SUPPORT
144 NVLINK_SAW_ERROR WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR
145 NVLINK_RLW_ERROR WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR
146 NVLINK_TLW_ERROR WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR
147 NVLINK_TREX_ERROR WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR
148 NVLINK_NVLPW_CTRL_ERROR WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR
149 NVLINK_NETIR_ERROR WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR
150 NVLINK_MSE_ERROR WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR
151 ROBUST_CHANNEL_KEY_ROTATION_ERROR RESTART_VM CONTACT_SUPPORT
152 ROBUST_CHANNEL_DLA_SMMU_ERROR IGNORE CONTACT_SUPPORT
153 ROBUST_CHANNEL_DLA_TIMEOUT IGNORE CONTACT_SUPPORT
154 GPU_RECOVERY_ACTION_CHANGED XID_154 -
155 NVLINK_SW_DEFINED_ERROR RESET_GPU INVESTIGATE_SW_USER
156 RESOURCE_RETIREMENT_EVENT RESET_GPU IGNORE
157 RESOURCE_RETIREMENT_FAILURE IGNORE CONTACT_SUPPORT
158 GPU_FATAL_TIMEOUT RESET_GPU CONTACT_SUPPORT
159 ROBUST_CHANNEL_CHI_NON_DATA_ERROR CHECK_UVM SYMPATHETIC_REPORT_SOLO
160 CHANNEL_RETIREMENT_EVENT IGNORE INVESTIGATE_SW
161 CHANNEL_RETIREMENT_FAILURE IGNORE INVESTIGATE_SW
162 PSHC_REENGAGED - -
163 PSHC_DISENGAGED - -
164 PSHC_LOW_LIFETIME - -
165 PSHC_ZERO_LIFETIME - -
166 NVLINK_SECURE_CRYPTO_ERR - -
167 PCIE_FATAL_TIMEOUT - -
168 REDUCED_GPU_MEMORY_CAPACITY - -
169 SEC2_HALT_ERROR - -
170 NVLINK_SECURE_OTHER - -
171 UNCORRECTABLE_DRAM_ERROR - -
172 UNCORRECTABLE_SRAM_ERROR - -
"""
"""Number, mnemonic, immediate action, investigatory action (``-``: none named) of each Xid.

Source: NVIDIA's published Xid catalogue; codes and names only, the words above are ours.
"""
