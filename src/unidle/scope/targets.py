"""Which processes a look is at: a process and those below it, or the ranks of a running job; and what else runs next to them."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from unidle.engine.local.ranks import process_tree, rundir
from unidle.engine.local.ranks.spawned import live_pid
from unidle.errors import BadInput, CannotRun, TargetEnded
from unidle.scope.bottlenecks import Machine
from unidle.scope.model import Profile

# unidle's own last: what a rank starts, such as mpirun, numbers its processes itself
RANK_VARIABLES: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "UNIDLE_RANK")
_ROOT_RIGHTS: Final = (19, 21)  # CAP_SYS_PTRACE, CAP_SYS_ADMIN
_BUSY_CPUS: Final = 0.2


@dataclass(frozen=True, slots=True)
class ProfileTarget:
    """Processes to look at. ``ranks`` names those that are known to be a rank; ``job`` is empty without one.

    ``pids`` holds the children that there were, of which some may have ended by the time they are watched: what a look receives is
    ``roots``, and a tier finds those below them by itself.
    """

    roots: tuple[int, ...]
    pids: tuple[int, ...]
    ranks: Mapping[int, int] = field(default_factory=dict)
    job: str = ""
    commands: Mapping[int, str] = field(default_factory=dict)

    def named(self, profile: Profile) -> Profile:
        """The profile with the ranks and the job that its tier could not know."""
        processes = tuple(
            replace(
                process,
                rank=self.ranks.get(process.pid, process.rank),
                job=process.job or self.job,
                command=process.command or self.commands.get(process.pid, ""),
            )
            for process in profile.processes
        )
        return replace(profile, processes=processes)


def of_process(pid: int, *, children: bool = True) -> ProfileTarget:
    """A process and, with ``children``, those below it. Errors: BadInput if it does not exist, TargetEnded, CannotRun."""
    stat = process_tree.stat_of(pid)
    if stat is None or pid <= 0:
        raise BadInput("no such process", field="PID", value=pid, remedy="`ps aux` lists them")
    if stat[0] in "ZX":
        raise TargetEnded("the process has ended", field="PID", value=pid, remedy="name one that runs")
    if not _command(pid):
        raise BadInput("is a kernel thread, which has no stack in user space", field="PID", value=pid, remedy="use the pid of a program")  # fmt: skip
    need_right(pid)
    return _target([pid], children=children)


def of_ranks(
    root: Path, job: str, attempt: int, ranks: Sequence[int], *, children: bool = True
) -> ProfileTarget:
    """The ranks of an attempt that run on this machine. Errors: CannotRun where none does, or may not be seen."""
    found = pids_of_ranks(root, job, attempt, ranks)
    if not found:
        raise CannotRun(
            "no rank of it runs on this machine now", field="JOB", value=job,
            remedy="`unidle list` shows the running jobs; run the command on the job's machine",
        )  # fmt: skip
    for pid in found:
        need_right(pid)
    return _target(list(found), children=children, ranks=found, job=job)


def pids_of_ranks(root: Path, job: str, attempt: int, ranks: Sequence[int]) -> dict[int, int]:
    """The rank of each process of an attempt's ranks that is alive on this machine."""
    found = {}
    for rank in ranks:
        if (pid := live_pid(rundir.rank_dir(root, job, attempt, rank))) is not None:
            found[pid] = rank
    return found


def need_right(pid: int) -> None:
    """Errors: CannotRun where this user may not look at the process, with what would help."""
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return
    if owner == os.geteuid() or os.geteuid() == 0 or _capabilities() & sum(1 << n for n in _ROOT_RIGHTS):
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    raise CannotRun(
        f"the process belongs to {name}, and you may not profile it", field="PID", value=pid,
        remedy=f"use `sudo unidle profile {pid}`, or run it as {name} (T1 and T2 only)",
    )  # fmt: skip


def rank_of_environment(pid: int) -> int | None:
    """The rank that a process was started with, by what torchrun, MPI and Slurm call it."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    told = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
    for name in RANK_VARIABLES:
        value = told.get(name.encode(), b"")
        if value.isdigit():
            return int(value)
    return None


def any_lives(pids: Sequence[int]) -> bool:
    """Whether one of the processes still runs."""
    return any(process_tree.is_live(pid) for pid in pids)


class OtherPrograms:
    """What other programs use while a look lasts: CPU times of all processes before and after it."""

    def __init__(self, target: ProfileTarget) -> None:
        self._target = target
        self._cpus = _allowed_cpus(target.pids[0])
        self._before = _cpu_seconds()
        self._busy = _busy_seconds()
        self._since = time.monotonic()

    def machine(self, watched: Sequence[int]) -> Machine:
        """The load of the machine by other programs. ``watched``: pids that the profile covers."""
        seconds = max(time.monotonic() - self._since, 1e-3)
        mine = {*watched, *self._target.pids, os.getpid()}
        used = {
            pid: (total - self._before.get(pid, 0.0)) / seconds for pid, total in _cpu_seconds().items() if pid not in mine
        }  # fmt: skip
        most = sorted(((cpus, pid) for pid, cpus in used.items() if cpus >= _BUSY_CPUS), reverse=True)[:5]
        named = tuple((pid, _command(pid) or f"pid {pid}", round(cpus, 2)) for cpus, pid in most)
        busy = _busy_seconds()
        return Machine(
            self._cpus, named, None if busy is None or self._busy is None else (busy - self._busy) / seconds
        )


def _target(
    roots: Sequence[int], *, children: bool, ranks: Mapping[int, int] | None = None, job: str = ""
) -> ProfileTarget:
    pids = list(roots)
    if children:
        for root in roots:
            pids += sorted(process_tree.descendants(root) - set(pids))
    known = dict(ranks or {})
    if not known:
        known = {pid: rank for pid in pids if (rank := rank_of_environment(pid)) is not None}
    return ProfileTarget(tuple(roots), tuple(pids), known, job, {pid: _command(pid) for pid in pids})


def _allowed_cpus(pid: int) -> int | None:
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:
        return None


def _cpu_seconds() -> dict[int, float]:
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for pid in process_tree.all_pids():
        try:
            fields = process_tree.fields_of(process_tree.said(f"/proc/{pid}/stat"))
        except OSError:
            continue
        found[pid] = (int(fields[11]) + int(fields[12])) / tick
    return found


def _busy_seconds() -> float | None:
    """CPU time of everything since the boot."""
    try:
        words = process_tree.said("/proc/stat").split(b"\n", 1)[0].split()
        user, nice, system, _, _, irq, soft = map(int, words[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _command(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    return text[:1000]


def _capabilities() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
