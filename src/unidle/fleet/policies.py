"""Policies of a fleet: for sick nodes and devices, idle holders, the profiler, and files of jobs that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Rung = Literal["reset_gpu", "reboot", "replace"]
RUNGS: Final[tuple[Rung, ...]] = ("reset_gpu", "reboot", "replace")
"""The ladder, from below. The steps below these, another process or another gang, are the job's own restarts."""
HARD: Final[tuple[Rung, ...]] = ("reboot", "replace")
"""Those that no process on the node survives."""
STEP_OF: Final[dict[str, str]] = {
    "drain": "check", "reset_gpu": "reset_gpu", "reboot_node": "reboot", "replace": "replace",
}  # fmt: skip
"""By action of a fault the step to begin with. Other actions leave the node or device in service."""

Preflight = Literal["auto", "off", "quick", "standard"]
"""``auto``: the quick check before what has several ranks or GPUs."""
ProbationWork = Literal["none", "low"]
_S: Final = 1_000_000_000
MINUTE_NS: Final = 60 * _S
HOUR_NS: Final = 60 * MINUTE_NS


@dataclass(frozen=True, slots=True)
class Hook:
    """A command of the site, without a shell; ``{node}`` and ``{device}`` in its words are replaced.

    It is ended after ``timeout_ns``. One that does not succeed is tried ``tries`` times, ``pause_ns`` apart.
    """

    command: tuple[str, ...] = ()
    timeout_ns: int = 10 * MINUTE_NS
    tries: int = 2
    pause_ns: int = 10 * _S


@dataclass(frozen=True, slots=True)
class Out:
    """Limits on how much of the fleet unidle takes out of service.

    ``most`` nodes, or ``ppm`` of the fleet's (one, at least); ``tier_ppm`` of those under the same tier.
    """

    most: int | None = None
    ppm: int = 100_000
    tier_ppm: int = 500_000
    per_hour: int = 20  # remedies begun


@dataclass(frozen=True, slots=True)
class Breaker:
    """This many nodes that fail within ``within_ns`` have a common cause: then no node is removed."""

    nodes: int = 3
    ppm: int = 50_000
    within_ns: int = 10 * MINUTE_NS


@dataclass(frozen=True, slots=True)
class Lemon:
    """A node or device that fails ``times`` times within ``within_ns`` is left to the operator."""

    times: int = 3
    within_ns: int = 30 * 24 * HOUR_NS


LinkMethod = Literal["tcp", "gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class Between:
    """The check between the nodes of a gang before it starts.

    Each pair has to reach ``least_mbps`` (Mbit/s), by default nearly what the better half of the pairs does. Pairs are
    measured for ``measure_ns`` by ``method``: TCP, or an all-reduce of PyTorch. The check ends within ``timeout_ns``.
    ``ports``: first and last of those that its nodes listen on; None: any.
    """

    least_mbps: int | None = None
    measure_ns: int = _S // 2
    method: LinkMethod = "tcp"
    timeout_ns: int = 2 * MINUTE_NS
    ports: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """See ``docs/how-to/sick-nodes.md``. ``prove`` is the check after a remedy, ``quick`` the one before a gang.

    With ``accept_unknown`` an undecided check after a remedy that finds no problem counts as passed. ``spares``:
    so many nodes of each kind, or ``spare_nodes``: these, are kept for gangs that lost something to a fault;
    filler that is in their way has at most ``spare_grace_ns`` to stop. ``between``: how links between the nodes of a
    gang are checked; None: they are not.
    """

    remedies: dict[Rung, Hook] = field(default_factory=dict)
    prove: Hook = Hook(tries=3)
    quick: Hook = Hook(timeout_ns=MINUTE_NS, tries=3)
    drain_ns: int = 5 * MINUTE_NS
    drain_hard_ns: int = 30 * _S
    suspect_ns: int = HOUR_NS
    quarantine_ns: int = 24 * HOUR_NS
    probation_ns: int = 10 * MINUTE_NS
    probation_every_ns: int = MINUTE_NS
    out: Out = Out()
    breaker: Breaker = Breaker()
    lemon: Lemon = Lemon()
    preflight: Preflight = "auto"
    preflight_age_ns: int = 10 * MINUTE_NS
    accept_unknown: bool = False
    spares: int = 0
    spare_nodes: tuple[str, ...] = ()
    spare_grace_ns: int = 2 * _S
    probation_work: ProbationWork = "none"
    between: Between | None = None

    @property
    def keeps_spares(self) -> bool:
        return bool(self.spares or self.spare_nodes)


Then = Literal["end", "requeue"]


@dataclass(frozen=True, slots=True)
class IdleTerms:
    """When an idle job gets a notice, and whether its devices are released after it.

    ``start_ns`` takes the place of ``after_ns`` for an attempt that has shown no work yet. ``then`` is
    what becomes of a job that was released: it ends, or waits again.
    """

    after_ns: int = 30 * MINUTE_NS
    start_ns: int = 60 * MINUTE_NS
    notice_ns: int = 15 * MINUTE_NS
    release: bool = False
    then: Then = "end"


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """The fleet's terms, and those of queues that have their own. Terms of a queue apply to those below it, too.

    ``busy_ppm`` is how much of one CPU core, or of a GPU's time, counts as work. Jobs of queues in ``exempt`` are
    exempt; in queues of ``idle_ok``, jobs with ``idle_ok``.
    """

    terms: IdleTerms = field(default_factory=IdleTerms)
    busy_ppm: int = 50_000
    exempt: tuple[str, ...] = ()
    idle_ok: tuple[str, ...] = ()
    queues: dict[str, IdleTerms] = field(default_factory=dict)

    def terms_of(self, queue: str, parents: Mapping[str, str | None], *, idle_ok: bool) -> IdleTerms | None:
        """The terms of a job of ``queue`` (``parents``: of each queue); None if it is exempt."""
        line = [queue]
        while (above := parents.get(line[-1])) is not None and above not in line:
            line.append(above)
        spared = {*self.exempt, *(self.idle_ok if idle_ok else ())}
        if spared and not spared.isdisjoint(line):
            return None
        return next((self.queues[name] for name in line if name in self.queues), self.terms)


@dataclass(frozen=True, slots=True)
class ProfilePolicy:
    """Running ranks are sampled for ``look_ns`` every ``every_ns``, ``hz`` times per second and thread.

    Sample periods become rarer if they cost more than ``most_ppm`` of one core over time. Profiles are kept for
    ``keep_ns``, in at most ``most_bytes`` of all jobs and a quarter of that of one.
    """

    on: bool = False
    hz: int = 99
    look_ns: int = 2_000_000_000
    every_ns: int = 60_000_000_000
    keep_ns: int = 168 * HOUR_NS
    most_bytes: int = 256 << 20
    most_ppm: int = 10_000

    @property
    def job_most_bytes(self) -> int:
        return self.most_bytes // 4


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What ``unidle up`` does with the files of ended jobs; by default it removes and moves nothing.

    Jobs that ended ``age_ns`` ago are removed, and the oldest ones while more than ``jobs`` have files, or these take
    more than ``size_bytes``. None: no such limit. Run directories are compressed into the store ``compress_ns`` after
    the end of their job; None: never.
    """

    age_ns: int | None = None
    size_bytes: int | None = None
    jobs: int | None = None
    compress_ns: int | None = None

    @property
    def removes(self) -> bool:
        """Whether there is any limit."""
        return (self.age_ns, self.size_bytes, self.jobs) != (None, None, None)

    @property
    def on(self) -> bool:
        return self.removes or self.compress_ns is not None


OVERLAY_VARIABLE: Final = "UNIDLE_NVML_OVERLAY"
"""The environment variable with a file that replaces what NVML reports, for nodes without one of their own."""

KERNEL_LOG_VARIABLE: Final = "UNIDLE_KERNEL_LOG"
"""The environment variable with the kernel log of a node that is alone on its machine and has none of its own in the fleet."""


@dataclass(frozen=True, slots=True)
class WatchSources:
    """``kernel_log``: ``kmsg``, ``syslog``, ``journal``, ``off`` or the path of a log that is followed.

    Empty: this machine's own log (or :data:`KERNEL_LOG_VARIABLE`) where the node is the only one of its fleet, else nothing. ``pci`` are the PCI
    addresses of its devices in their order, for machines whose driver is not accessible. ``nvml`` is the path of
    a JSON file whose readings override those of NVML, for drills.
    """

    kernel_log: str = ""
    pci: tuple[str, ...] = ()
    nvml: str = ""
