"""What to do about a leaf, and the command that shows more of it."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from unidle.report.model import ReportData
from unidle.report.totals import LeafLine, largest_loss, waterfall_lines

# Words after `unidle`; JOB stands for the job that lost most to the leaf.
_EXPLAIN: Final = ("explain", "JOB")
_SHOW: Final = ("show", "JOB")
_LOGS: Final = ("logs", "JOB")
_BY_JOB: Final = ("ledger", "--by", "job")
_BY_DEVICE: Final = ("ledger", "--by", "device")
_FLEET: Final = ("fleet",)
_IDLE: Final = ("fleet", "--idle")

ADVICE: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "unseen": ("see why these devices were not observed", ("doctor",)),
    "fault": ("repair or drain the faulty devices", _FLEET),
    "repair": ("see which devices are under repair", _FLEET),
    "maintenance": ("see which devices are in maintenance", _FLEET),
    "quarantine": ("see which devices are on probation", _FLEET),
    "boot": ("see which nodes boot", _FLEET),
    "taken": ("see what others use of the fleet, and move it elsewhere", _FLEET),
    "others_starting": ("see which pods of others do not start", ("list", "--others")),
    "others_running": ("see which pods of others run on the fleet", ("list", "--others")),
    "others_ending": ("see which pods of others do not end", ("list", "--others")),
    "drained": ("see which nodes are cordoned", _FLEET),
    "no_demand": ("give the idle devices work: submit more, or use more ranks", ("list",)),
    "stranded": (
        "ask for fewer cores and less memory per job, or give such jobs nodes without GPUs",
        ("list",),
    ),
    "fragmented": ("see which gang fits nowhere and why", ("list",)),
    "quota": ("see whose quota holds the queue back", ("list",)),
    "reserved": ("see which devices are kept as hot spares", _FLEET),
    "gathering": ("see which gang the devices are kept for", ("list",)),
    "scheduler_latency": ("see what the placement waited for", _EXPLAIN),
    "pod_binding": ("see what the pod waited for", _EXPLAIN),
    "volume_mount": ("see which volumes are slow to be mounted", _EXPLAIN),
    "image_pull": ("keep the image on the nodes, or make it smaller", _EXPLAIN),
    "container_start": ("see what the container does before its ranks start", _LOGS),
    "gang_wait": ("see which rank started late", _SHOW),
    "preflight": ("see what the health checks waited for", _SHOW),
    "start": ("see what the ranks do before the first step", _LOGS),
    "restore": ("see what was restored, and from where", _SHOW),
    "compile": ("see what is compiled again at each start", _LOGS),
    "checkpoint": ("save less often, or without blocking the steps", _SHOW),
    "data_stall": ("see which rank waits for its input", _LOGS),
    "evaluation": ("evaluate less often, or on other devices", _SHOW),
    "hang": ("see the last output of the ranks", _LOGS),
    "silent": ("see which host did not answer, and when", _EXPLAIN),
    "preempting": ("see which job preempted which", _EXPLAIN),
    "idle": ("see which job holds devices that it does not use", _BY_JOB),
    "bubble": ("use more microbatches, or fewer stages", _SHOW),
    "exposed_local": ("overlap the communication with compute", _SHOW),
    "exposed_wan": ("keep the gang inside one site", _EXPLAIN),
    "straggler_wait": ("find the slow rank", _BY_DEVICE),
    "host_gap": ("see what the host does between kernels", _LOGS),
    "unmeasured": (
        "set progress.pattern in the job file, or call unidle.rank.step() in the training loop",
        ("progress", "JOB"),
    ),
    "recompute": ("keep more activations where memory allows", _SHOW),
    "failed_start": ("see why the ranks ended before their first step", _LOGS),
    "replayed": ("save checkpoints more often, and see why ranks failed", _SHOW),
    "preempted": ("save a checkpoint before the job is preempted", _EXPLAIN),
    "disrupted": ("save a checkpoint more often, and see who ended the gang", _EXPLAIN),
    "rolled_back": ("see which steps were undone", _SHOW),
    "no_artefact": ("save a checkpoint before the job ends", _SHOW),
    "slo_missed": ("see which service misses its objective", _BY_JOB),
    "evicted_recompute": ("see which service evicts its cache", _BY_JOB),
    "warm_idle": ("see which loaded models have no requests", _BY_JOB),
    "ready": ("see which service it is; its requests are not measured", _BY_JOB),
    "unready": ("see why the replica did not answer", _LOGS),
    "model_load": ("see which models are loaded most often", _BY_JOB),
    "discarded": ("see whose filler work was thrown away", _BY_JOB),
}


@dataclass(frozen=True, slots=True)
class Advice:
    """``words`` is the command, one argument each, starting with ``unidle``."""

    line: LeafLine
    text: str
    words: tuple[str, ...]

    @property
    def lead(self) -> str:
        """What the sentence about the leaf begins with: time without steps may have been of use."""
        return "No steps were seen" if self.line.leaf == "unmeasured" else "Most to gain"


def best_advice(data: ReportData) -> Advice | None:
    """What would win back most device time, and the command for it."""
    line = largest_loss(data)
    return None if line is None else _advice_on(data, line)


def steps_advice(data: ReportData) -> Advice | None:
    """How to have steps seen where none were; None where that is :func:`best_advice`, or concerns next to no time."""
    lines = [leaf for group in waterfall_lines(data) for leaf in group.leaves if leaf.leaf == "unmeasured"]
    if not lines or lines[0].ns * 1_000 < data.capacity_ns or lines[0] == largest_loss(data):
        return None
    return _advice_on(data, lines[0])


def _advice_on(data: ReportData, line: LeafLine) -> Advice:
    text, words = ADVICE.get(line.leaf, ("see which job lost most to it", _BY_JOB))
    if line.leaf == "idle" and any(job.state == "running" for job in data.jobs):
        words = _IDLE
    if "JOB" in words:
        job = _job_with_most(data, line.leaf)
        words = tuple(job if w == "JOB" else w for w in words) if job else _BY_JOB
    return Advice(line, text, ("unidle", *words, "--store", data.store))


def _job_with_most(data: ReportData, leaf: str) -> str:
    spent: dict[str, int] = defaultdict(int)
    for track in data.devices:
        for bar in track.bars:
            if bar.leaf == leaf and bar.job:
                spent[bar.job] += (bar.end_ns - bar.start_ns) * track.share_ppm
    return min(spent, key=lambda job: (-spent[job], job), default="")


def shell_line(words: tuple[str, ...]) -> str:
    """The command as one line that a POSIX shell reads back as ``words``."""
    return " ".join(shlex.quote(word) for word in words)


def shell_lines(words: tuple[str, ...], width: int, measure: Callable[[str], int] = len) -> list[str]:
    """The same command on lines of at most ``width`` columns (at least 24), continued by backslashes.

    A word that is longer than a line is cut into quoted pieces, which the shell joins again.
    """
    lines: list[str] = []
    line = ""
    for word in words:
        for k, piece in enumerate(_pieces(word, width - 6, measure)):
            if k:
                lines.append(line + "\\")
                line = piece
            elif not line:
                line = "  " + piece
            elif measure(line) + measure(piece) + 3 <= width:
                line += " " + piece
            else:
                lines.append(line + " \\")
                line = "    " + piece
    return [*lines, line]


def _pieces(word: str, room: int, measure: Callable[[str], int]) -> list[str]:
    """``word`` quoted, in as many pieces as it takes for each to fit."""
    pieces = []
    chunk = ""
    for character in word:
        if chunk and measure(shlex.quote(chunk + character)) > room:
            pieces.append(shlex.quote(chunk))
            chunk = ""
        chunk += character
    return [*pieces, shlex.quote(chunk)]
