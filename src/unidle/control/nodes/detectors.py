"""Findings of the detectors as events: faults of nodes and devices, the jobs they hit, and detectors that cannot see.

``unidle.guard`` judges the findings; this module applies its verdict once for each fault.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from unidle.control.nodes.storage_watch import StorageWatch, directories_of
from unidle.engine.local.ranks.netns import enter
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.fleet.policies import KERNEL_LOG_VARIABLE, OVERLAY_VARIABLE
from unidle.jobs import Reason
from unidle.probe.detector import Detection, DetectorStatus
from unidle.probe.file_system_use import used_at
from unidle.probe.node_detectors import LOG, OWN_LOGS, detectors_of, log_of
from unidle.probe.watcher import DetectorSpec, Watcher
from unidle.view.node_health import TAKES_OUT
from unidle.view.state import View
from unidle.view.watching import NO_SOURCE, hit_by, incident_kind, on_device

if TYPE_CHECKING:
    from unidle.guard.diagnosis import Diagnosis

SETTLE_NS: Final = 400_000_000
"""After the first sign of a fault its other lines are waited for: the driver's own verdict comes behind it."""
SAME_NS: Final = 60_000_000_000
"""A fault that is reported again before that is the same one."""
_RECENT: Final = 64
_MOST_KEYS: Final = 4096
_LINE: Final = re.compile(r"(?:^line \d+: )|(?: on line \d+)")

_Key = tuple[str, str, str]
_Line = tuple[str, str, int]
_Fault = tuple[str, str, str, int | None]


@dataclass(slots=True)
class _Group:
    """Signs of one device, or of one kind where they name no device."""

    waiting: list[Detection] = field(default_factory=list)
    recent: deque[Detection] = field(default_factory=lambda: deque(maxlen=_RECENT))


class SignSource(Protocol):
    """Where signs come from: the threads of a :class:`unidle.probe.watcher.Watcher`, or agents on other hosts."""

    def start(self) -> None: ...

    def take(self, *, logged: bool) -> tuple[list[Detection], list[DetectorStatus]]:
        """What is new, and what is known of who can see; ``logged``: the events of the last call are in the store."""
        ...

    def close(self, *, logged: bool) -> None: ...


class StorageSource(Protocol):
    """What checks the mounts of jobs' directories."""

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """The events that follow. Each has to be applied before the next. Never waits."""
        ...

    def close(self) -> None: ...


class Detectors:
    """Follows the sources of a fleet's nodes. ``file`` keeps how far each was read.

    ``storage``: of nodes that are other machines: mounts and file systems of this one prove nothing about them.
    """

    def __init__(
        self, fleet: Fleet, file: Path, offset_ns: int, *, watcher: SignSource | None = None, storage: StorageSource | None = None
    ) -> None:  # fmt: skip
        wanted, self._static = wanted_of(fleet, offset_ns, os.environ.get(OVERLAY_VARIABLE, ""))
        self._watcher = watcher if watcher is not None else Watcher(wanted, file, offset_ns)
        self._place = str(file.parent)
        self._elsewhere = storage is not None
        self._storage = storage or StorageWatch(file.with_name("mounts"))
        self._groups: dict[_Key, _Group] = {}
        self._told: dict[_Fault, tuple[str, int]] | None = None
        self._culprits: dict[_Line, int] = {}  # when it was heard

    def start(self) -> None:
        self._watcher.start()

    def close(self, *, logged: bool = False) -> None:
        """``logged``: the events that :meth:`take` gave are in the store."""
        self._watcher.close(logged=logged and not self._waits)
        self._storage.close()

    @property
    def _waits(self) -> bool:
        return any(group.waiting for group in self._groups.values())

    def take(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """The events that follow from the findings since the last call. Apply each one before you take the next."""
        heard, seeing = self._watcher.take(logged=not self._waits)
        yield from _sights(view, [*self._static, *seeing])
        yield from self._storage.look(view, now_ns)
        for one in (self._alone(view, sign) for sign in heard):
            finding = one.finding
            key = (one.node, finding.device, "" if finding.device else finding.kind)
            self._groups.setdefault(key, _Group()).waiting.append(one)
        for key, group in list(self._groups.items()):
            if group.waiting and now_ns - group.waiting[0].signal_ns >= SETTLE_NS:
                batch, group.waiting = group.waiting, []
                yield from self._judged(view, group, batch)
            elif not group.waiting and now_ns - group.recent[-1].signal_ns > SAME_NS:
                del self._groups[key]

    def _alone(self, view: View, one: Detection) -> Detection:
        """The sign; a symptom of a fault from before the return of its node counts for itself."""
        finding = one.finding
        if finding.role == "culprit":
            self._culprits[one.node, one.detector, finding.line] = one.signal_ns
            while len(self._culprits) > _MOST_KEYS:
                del self._culprits[next(iter(self._culprits))]
        if finding.alone is None or finding.cause_line is None:
            return one
        cause_ns = self._culprits.get((one.node, one.detector, finding.cause_line))
        if cause_ns is None or cause_ns >= _back_ns(view, one.node):
            return one
        return replace(one, finding=finding.alone)

    def _judged(self, view: View, group: _Group, batch: list[Detection]) -> Iterator[ev.Event]:
        from unidle.guard.diagnosis import judge

        since_ns = max(batch[0].signal_ns - SAME_NS, _back_ns(view, batch[0].node))
        known = [one for one in group.recent if one.signal_ns >= since_ns]
        group.recent.extend(batch)
        verdict = judge([one.finding for one in (*known, *batch)])
        if verdict is None or verdict.culprit is None or verdict.action == "ignore":
            return
        culprit = next(one for one in (*known, *batch) if one.finding is verdict.culprit)
        because, action = _because(culprit, verdict), verdict.action
        if action in TAKES_OUT and self._is_unused(view, culprit):
            action = "watch"
            text = f"{because.text}; nothing of the system, the store or a job is on it"
            because = Reason(because.code, text, because.figures)
        if action == "restart_app":
            yield from _laid_on_job(view, culprit, because)
        elif not self._again(view, batch, culprit, action):
            yield from _fault(view, culprit, action, because)

    def _is_unused(self, view: View, one: Detection) -> bool:
        """Whether it is a fault of a file system of its machine that nothing uses. A host has judged that itself."""
        if one.finding.kind != "fs" or one.source not in OWN_LOGS or self._elsewhere:
            return one.unused
        jobs = (path for job in view.jobs.open.values() for path in directories_of(job.spec))
        return not used_at(one.finding.device, (self._place, *jobs))

    def _again(self, view: View, batch: Sequence[Detection], one: Detection, action: str) -> bool:
        """Whether the fault ``one`` was reported already; it counts as the same while the log keeps telling it."""
        if self._told is None:  # what the last controller has told
            self._told = {
                (f.node, f.device or str(f.because.figures.get("hardware", "")), f.kind, f.code): (f.action, f.signal_ns)
                for f in view.faults
            }  # fmt: skip
        before = self._told.get(_same(one))
        again = (
            before is not None
            and before[0] == action
            and one.signal_ns - before[1] <= SAME_NS
            and before[1] >= _back_ns(view, one.node)
        )
        if not again:
            self._told.pop(_same(one), None)
            self._told[_same(one)] = (action, one.signal_ns)
        for other in batch:
            if (known := self._told.get(_same(other))) is not None:
                self._told[_same(other)] = (known[0], max(known[1], other.signal_ns))
        while len(self._told) > _MOST_KEYS:
            del self._told[next(iter(self._told))]
        return again


def _back_ns(view: View, node: str) -> int:
    """When the node came back last, or a person returned it: a fault after that is another one than a fault before."""
    here = view.care.targets.get(node)
    return max(view.care.returned.get(node, 0), here.repaired_ns if here is not None else 0)


def _same(one: Detection) -> _Fault:
    return one.node, one.device or one.finding.device, one.finding.kind, one.finding.code


def _sights(view: View, seeing: Sequence[DetectorStatus]) -> Iterator[ev.WatchSet]:
    """What changed of who can see."""
    for one in seeing:
        known = view.watching.get(one.node, {}).get(one.detector)
        if known is None or known.why_not != one.why_not:
            yield ev.WatchSet(one.node, one.detector, one.why_not, one.lost)


def _fault(view: View, one: Detection, action: str, because: Reason) -> Iterator[ev.Event]:
    finding = one.finding
    fault = ev.FaultSeen(
        one.node, finding.kind, action, one.onset_ns, one.signal_ns, because, one.device, finding.code
    )
    hit = list(hit_by(view, fault))
    yield fault
    for job, attempt, rank in hit:
        yield ev.VerdictReached(
            job, attempt, incident_kind(finding.kind), one.onset_ns, one.signal_ns, False, because,
            rank if one.device else None, one.node,
        )  # fmt: skip


def _laid_on_job(view: View, one: Detection, because: Reason) -> Iterator[ev.Event]:
    """A fault that a job caused itself is not a fault of the node: it is reported for the job.

    Nothing is reported if neither the process nor the device identifies one job.
    """
    found = _by_process(view, one) or (list(on_device(view, one.node, one.device)) if one.device else [])
    if len(found) != 1:
        return
    [(job, attempt, rank)] = found
    standing = view.jobs.open[job].attempts[-1].verdict
    if standing is None or standing.because.text != because.text:
        kind = incident_kind(one.finding.kind)
        yield ev.VerdictReached(
            job, attempt, kind, one.onset_ns, one.signal_ns, False, because, rank, one.node
        )


def _by_process(view: View, one: Detection) -> list[tuple[str, int, int]]:
    """Ranks on the detection's node with one of its pids: on another node the same pid is another process."""
    pids = set(one.pids)
    if not pids:
        return []
    return [
        (job, attempt.number, number)
        for job in sorted(view.live)
        for attempt in (view.jobs.open[job].attempts[-1],)
        for number, (rank, place) in enumerate(zip(attempt.ranks, attempt.places, strict=False))
        if rank.pid in pids and place.node == one.node and not rank.ended
    ]


def _because(one: Detection, verdict: Diagnosis) -> Reason:
    finding = one.finding
    figures: dict[str, int | float | str] = {
        "source": one.source, "hardware": finding.device, "severity": finding.severity,
    }  # fmt: skip
    if one.text:
        figures["line"] = one.text
    where = one.device or (finding.device if finding.device not in finding.because else "")
    text = _LINE.sub("", verdict.because)
    return Reason(finding.kind, f"{where}: {text}" if where else f"{one.node}: {text}", figures)


# -- which detectors there are ---------------------------------------------------------------------


def wanted_of(
    fleet: Fleet, offset_ns: int, overlay: str = ""
) -> tuple[tuple[DetectorSpec, ...], tuple[DetectorStatus, ...]]:
    """The detectors of a fleet on this machine, and the monitoring status of nodes without a kernel-log detector.

    The machine's own log and parts belong to the only node there is, or to a node that declares them.
    """
    wanted: list[DetectorSpec] = []
    static: list[DetectorStatus] = []
    for node in fleet.nodes:
        only = len(fleet.nodes) == 1
        own = list(detectors_of(node, offset_ns, enter, overlay=overlay, only=only))
        wanted += own
        if not any(one.name == LOG for one in own):
            off = log_of(node, only=only) == "off"
            if own or off:
                by = (
                    "in the fleet file"
                    if node.watch and node.watch.kernel_log
                    else f"by {KERNEL_LOG_VARIABLE}"
                )
                why_not = f"kernel log: switched off {by}" if off else NO_SOURCE
                static.append(DetectorStatus(node.id, LOG, why_not))
    return tuple(wanted), tuple(static)
