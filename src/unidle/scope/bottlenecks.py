"""What an engineer should know first: causes in plain words, biggest first, with the code line to look at and what helps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from unidle.scope.budget import Budgets, Cell, ThreadBudget, helpers_of, percentages
from unidle.scope.line_times import LineTime, lines_of
from unidle.scope.model import Profile
from unidle.scope.rank_views import compare
from unidle.scope.ranks import Blame, Comparison
from unidle.scope.rules import Category, StackRule
from unidle.scope.small_operators import split_at_operators
from unidle.words import counted, does

LEAST_SHARE: Final = 0.05
MOST_LOST: Final = 0.8  # of the time, to other programs, until that is the first cause
_BOOKKEEPING: Final = 0.5
_FEW_LINES: Final = 2

# What is shown as small operators, where they are the cause.
_WORK: Final = ("forward", "backward", "optimizer", "operators")
_AROUND: Final = frozenset({"python-code", "python-in-library", *_WORK})


@dataclass(frozen=True, slots=True)
class Machine:
    """What else was there while the look lasted; nothing where it is not known."""

    cpus: int | None = None  # that the process may use
    others: tuple[
        tuple[int, str, float], ...
    ] = ()  # pid, command and CPUs used of processes that were not watched
    busy: float | None = None  # CPUs in use by everything on the machine, what lived only shortly included


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One cause. ``says`` completes "it ..."; ``details`` are sentences; ``share`` is of the training thread's time."""

    cause: str
    category: Category
    share: float
    says: str
    lines: tuple[LineTime, ...] = ()
    lines_are: str = "at"
    details: tuple[str, ...] = ()
    do: str = ""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """What a cause is explained from."""

    profile: Profile
    budgets: Budgets
    thread: ThreadBudget
    cells: tuple[Cell, ...]
    machine: Machine
    comparison: Comparison | None
    share: float


def bottlenecks_of(
    profile: Profile, budgets: Budgets, thread: ThreadBudget, machine: Machine | None = None,
    comparison: Comparison | None = None,
) -> list[Bottleneck]:  # fmt: skip
    """Causes of a training thread's time, biggest first; those under 5 % only where nothing else is."""
    machine = machine or Machine()
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in thread.cells:
        groups[_cause(cell)].append(cell)
    found = []
    for cells in groups.values():
        share = sum(cell.ns for cell in cells) / thread.wall_ns
        case = _Case(profile, budgets, thread, tuple(cells), machine, comparison, share)
        found.append(_explained(case))
    small = _small_operators(profile, thread)
    if small is not None:
        found = [one for one in found if one.cause not in _AROUND] + [small]
    # What other programs do is no cause in this one: its own causes are compared in the time that it got. Where that is
    # little, theirs is what to know first.
    lost = next((one.share for one in found if one.cause == "no-cpu-of-others"), 0.0)
    found.sort(key=lambda one: (-_weight(one), one.cause))
    if len(found) > 1 and found[0].cause == "no-cpu-of-others" and lost <= MOST_LOST:
        found[:2] = found[1], found[0]
    big = [one for one in found if one.share >= LEAST_SHARE * (1 - lost)]
    return big or found[:1]


def _cause(cell: Cell) -> str:
    """The cause that groups a cell: all ways to save are one, computing is one; any other is the text of its rule."""
    if cell.rule.name in _WORK or (cell.rule.joins and cell.rule.category == "compute"):
        return "work"
    return cell.rule.category if cell.rule.category == "checkpoint_io" else cell.rule.says


def _weight(finding: Bottleneck) -> float:
    """Computing is what a job is for: it is shown first only where nothing else has half as much time."""
    return finding.share * (0.5 if finding.cause in _WORK else 1.0)


def late_rank(budgets: Budgets, comparison: Comparison | None) -> tuple[ThreadBudget, Blame] | None:
    """The latest of the late ranks: its training thread, and how it compares with the others."""
    if comparison is None or not comparison.late:
        return None
    blame = next(one for one in comparison.ranks if one.rank == comparison.late[0])
    thread = next((one for one in budgets.training if one.pid == blame.pid), None)
    return None if thread is None else (thread, blame)


def compared(profile: Profile, budgets: Budgets) -> Comparison | None:
    """How the ranks compare, and which are late; None with fewer than two."""
    subjects = {subject.pid: subject for subject in budgets.roles.subjects}
    if len(budgets.training) < 2:
        return None
    named = tuple(
        replace(one, rank=subjects[one.pid].rank if one.pid in subjects else None)
        for one in profile.processes
    )
    shares = {one.pid: percentages(one.ns) for one in budgets.training}
    threads = {one.pid: one.tid for one in budgets.training}
    return compare(replace(profile, processes=named), budgets=shares, threads=threads)


def rank_of(budgets: Budgets, thread: ThreadBudget) -> int | None:
    """The rank of a training thread's process."""
    return next((s.rank for s in budgets.roles.subjects if (s.pid, s.tid) == (thread.pid, thread.tid)), None)


def _explained(case: _Case) -> Bottleneck:
    times: Counter[StackRule] = Counter()
    for cell in case.cells:
        times[cell.rule] += cell.ns
    rule = max(times, key=lambda one: (times[one], one.name))
    lines = tuple(lines_of(case.profile, case.cells, whole_functions=True)[:_FEW_LINES])
    plain = Bottleneck(
        rule.name, rule.category, case.share, rule.says, lines, do=rule.do, rank=rank_of(case.budgets, case.thread)
    )  # fmt: skip
    if rule.name in _WORK and len(times) > 1:
        parts = ", ".join(
            f"{one.name} {100 * ns / case.thread.wall_ns:.0f} %" for one, ns in times.most_common()
        )
        plain = replace(plain, says="computes", details=(parts,), do="")
    explain = _EXPLAIN.get(rule.name)
    return explain(case, plain) if explain is not None else plain


def _loader(case: _Case, plain: Bottleneck) -> Bottleneck:
    """Where the workers spend their time; whether they are the bottleneck at all."""
    roles, budgets = case.budgets.roles, case.budgets
    parents = {p.pid: p.parent for p in case.profile.processes}
    pids = [
        pid for pid in roles.pids("loader") if parents.get(pid) in (case.thread.pid, None, 0)
    ] or roles.pids("loader")
    workers = [budgets.threads[pid, pid] for pid in pids if (pid, pid) in budgets.threads]
    if not workers:
        return replace(plain, details=("its workers were not profiled: leave --no-children out",))
    busy = [1 - one.rest_ns / one.wall_ns for one in workers if one.wall_ns]
    says = f"{counted(len(workers), 'worker')}, busy {_range(busy)} of the time"
    no_cpu = sum(one.ns.get("cpu_contention", 0) for one in workers) / sum(one.wall_ns for one in workers)
    if no_cpu > 0.15:
        says += f" ({100 * no_cpu:.0f} % of it waiting for a CPU)"
    lines = tuple(_work_lines(case.profile, workers)[:_FEW_LINES])
    if busy and max(busy) < 0.5:
        return replace(
            plain, details=(says, "so the transfer of batches takes the time, not their computation"), lines=lines or plain.lines,
            do="smaller batches or shared memory for them; a larger prefetch_factor; persistent_workers=True",
            lines_are="there",
        )  # fmt: skip
    do = f"more workers (num_workers is {len(workers)}), or make this line cheaper"
    if case.machine.cpus is not None and len(workers) >= case.machine.cpus:
        do = f"make this line cheaper: {counted(case.machine.cpus, 'CPU')} for {counted(len(workers), 'worker')} allow no more workers"
    return replace(plain, details=(says,), lines=lines or plain.lines, lines_are="they are in", do=do)


def _work_lines(profile: Profile, threads: Iterable[ThreadBudget]) -> list[LineTime]:
    """Lines of threads' work, a function's together."""
    cells = [cell for one in threads for cell in one.cells if not cell.rule.rest]
    return lines_of(profile, cells, whole_functions=True)


def _others(case: _Case, plain: Bottleneck) -> Bottleneck:
    """What the threads do that this one waits for."""
    own = case.thread.pid, case.thread.tid
    cells = {key: one.cells for key, one in case.budgets.threads.items()}
    rule = case.cells[0].rule
    keys = helpers_of(own, rule, cells, case.budgets.roles, case.thread.wall_ns // 20)
    threads = [case.budgets.threads[key] for key in keys]
    if not threads:
        return plain
    names = ", ".join(sorted({one.name or str(one.tid) for one in threads})[:3])
    busy = [1 - one.rest_ns / one.wall_ns for one in threads if one.wall_ns]
    lines = tuple(_work_lines(case.profile, threads)[:_FEW_LINES])
    what = f"{counted(len(threads), 'thread')} ({names}) {does(len(threads), 'work')} {_range(busy)} of the time meanwhile"
    return replace(plain, details=(what,), lines=lines or plain.lines, lines_are="they are in")


def _pool(case: _Case, plain: Bottleneck) -> Bottleneck:
    roles = case.budgets.roles
    parents = {p.pid: p.parent for p in case.profile.processes}
    mine = [
        p
        for p in roles.kinds
        if parents.get(p) == case.thread.pid and roles.kinds[p] in ("pool", "program", "loader")
    ]
    workers = [case.budgets.threads[p, p] for p in mine if (p, p) in case.budgets.threads]
    if not workers:
        return _others(case, plain)
    busy = [1 - one.rest_ns / one.wall_ns for one in workers if one.wall_ns]
    lines = tuple(_work_lines(case.profile, workers)[:_FEW_LINES])
    says = f"{counted(len(workers), 'process')} of its own, busy {_range(busy)} of the time"
    return replace(plain, details=(says,), lines=lines or plain.lines, lines_are="they are in")


def _child(case: _Case, plain: Bottleneck) -> Bottleneck:
    """Which programs it started and waited for."""
    mine = [p for p in case.profile.processes if p.parent == case.thread.pid and case.budgets.roles.kinds.get(p.pid) not in ("loader", "pool", "helper")]  # fmt: skip
    if not mine:
        return plain
    commands = Counter(_command(p.command) for p in mine if p.command)
    what = f": {commands.most_common(1)[0][0]}" if commands else ""
    return replace(plain, details=(f"{counted(len(mine), 'program')} while it was watched{what}",))


def _gil(case: _Case, plain: Bottleneck) -> Bottleneck:
    """Who holds the interpreter: the other threads of the process that run Python."""
    others = [
        one for one in case.budgets.of_process(case.thread.pid)
        if one.tid != case.thread.tid and any(c.state == "on" and _runs_python(case.profile, c) for c in one.cells)
    ]  # fmt: skip
    cells = [c for one in others for c in one.cells if c.state == "on" and _runs_python(case.profile, c)]
    if not cells:
        return plain
    held = sum(cell.ns for cell in cells) / case.thread.wall_ns
    what = f"{counted(len(others), 'other thread')} of the process {does(len(others), 'run')} Python for {100 * held:.0f} % of the time"
    lines = tuple(lines_of(case.profile, cells, whole_functions=True)[:_FEW_LINES])
    return replace(plain, details=(what,), lines=lines, lines_are="they are in")


def _runs_python(profile: Profile, cell: Cell) -> bool:
    return (
        cell.rule.category in ("python", "data")
        and cell.stack is not None
        and bool(profile.stacks[cell.stack])
    )


def _lock(case: _Case, plain: Bottleneck) -> Bottleneck:
    """What the other Python threads do meanwhile: one of them holds the lock."""
    others = [one for one in case.budgets.of_process(case.thread.pid) if one.tid != case.thread.tid]
    waiting = [one for one in others if one.share("lock") > 0.2]
    cells = [c for one in others for c in one.cells if not c.rule.rest and c.rule.category != "lock"]
    lines = [one for one in lines_of(case.profile, cells, whole_functions=True) if one.place.file][:1]
    details = []
    if waiting:
        details.append(f"{counted(len(waiting), 'other thread')} {does(len(waiting), 'wait')} for locks too")
    if lines:
        says = max(cells, key=lambda c: c.ns).rule.says
        details.append(f"meanwhile another thread {says}: {lines[0].place.text}")
    return replace(plain, details=tuple(details))


def _no_cpu(case: _Case, plain: Bottleneck) -> Bottleneck:
    """Who has the CPUs: threads of this job, or other programs."""
    job, ready, wants = _cpu_wants(case)
    wanting = sum(wants.values())
    known = f" of {counted(case.machine.cpus, 'CPU')}" if case.machine.cpus else " CPUs"
    details = [
        f"{counted(wanting, 'thread')} of this job {does(wanting, 'want')} a CPU; together they get {job:.1f}{known}"
    ]
    do = plain.do
    foreign = case.machine.cpus is not None and _taken_by_others(job, ready, case.machine.cpus)
    elsewhere = max(sum(cpus for *_, cpus in case.machine.others), (case.machine.busy or 0.0) - job)
    below = Counter(
        _command(p.command) for p in case.profile.processes if p.pid != case.thread.pid and wants.get(p.pid)
    )
    if below and not foreign:
        command = below.most_common(1)[0][0]
        details.append(f"{counted(sum(below.values()), 'other process')} of it: {command}")
    if case.machine.others and (foreign or elsewhere > 0.5 * (case.machine.cpus or 1)):
        pid, command, cpus = case.machine.others[0]
        details.append(
            f"other programs have {elsewhere:.1f} CPUs, most of it {_command(command)} (pid {pid}, {cpus:.1f})"
        )
        do = f"move pid {pid} elsewhere, or keep it to other CPUs (taskset, a cgroup)" if foreign else do
    elif foreign and case.machine.busy is not None and elsewhere < ready / 2:
        details.append("and CPUs are free: the time is that from each wake-up until it runs")
        do = (
            "hand over less often between threads and processes; a virtual machine's idle CPUs wake up slowly"
        )
    elif foreign:
        busy = "" if case.machine.busy is None else f" ({elsewhere:.1f} of them)"
        details.append(f"so other programs of this machine have the CPUs{busy}")
        do = "find them with `top`, and keep them to other CPUs (taskset, a cgroup)"
    cause = "no-cpu-of-others" if foreign else plain.cause
    return replace(plain, cause=cause, details=tuple(details), do=do, lines_are="it is ready to run")


def _cpu_wants(case: _Case) -> tuple[float, float, Counter[int]]:
    """CPUs that the job has, those that its threads are ready for, and by process the threads that want one for a tenth of
    the time or more."""
    wall = max(case.profile.end_ns - case.profile.start_ns, 1)
    used, ready_in_all = 0, 0
    wants: Counter[int] = Counter()
    for one in case.budgets.threads.values():
        on = sum(cell.ns for cell in one.cells if cell.state == "on")
        ready = sum(cell.ns for cell in one.cells if cell.state == "runq")
        used += on
        ready_in_all += ready
        wants[one.pid] += (on + ready) * 10 > wall
    return used / wall, ready_in_all / wall, wants


def _taken_by_others(used: float, ready: float, cpus: int) -> bool:
    """Whether more of what a job's threads lack, in CPUs, is because other programs have them than because there are too few for
    the job alone."""
    wanted = used + ready
    return min(wanted, cpus) - used > max(wanted - cpus, 0.0)


def _collective(case: _Case, plain: Bottleneck) -> Bottleneck:
    """The straggler, and what it does meanwhile; or that there is none, and the collective itself is slow."""
    if len(case.budgets.training) < 2:
        return replace(
            plain, details=("the other ranks were not profiled: give the job's name or its launcher's pid",)
        )
    late = late_rank(case.budgets, case.comparison)
    if late is None:
        why = case.comparison.text if case.comparison else "no rank is a straggler"
        return replace(plain, details=(why,))
    thread, blame = late
    name = f"rank {blame.rank}"
    says = (
        f"{name} (pid {blame.pid}) is a straggler: it waits {blame.late_pct:.0f} points less than the others"
    )
    more = [f"{cause.what}{f' at {cause.line}' if cause.line else ''}" for cause in blame.causes[:2]]
    if more:
        says += f", and has more of {' and of '.join(more)}"
    lines = [one for one in _work_of(case.profile, thread) if one.place.file]
    lines.sort(key=lambda one: not any(f"{one.place.where} " in f"{cause.line} " for cause in blame.causes))
    return replace(
        plain, says=f"waits for {name}, a straggler" if thread is not case.thread else plain.says, details=(says,),
        lines=tuple(lines[:_FEW_LINES]) or plain.lines, lines_are=f"{name} is in",
        do="make that cheaper on that rank, or share the work out evenly",
    )  # fmt: skip


def _work_of(profile: Profile, thread: ThreadBudget) -> list[LineTime]:
    return lines_of(
        profile, (cell for cell in thread.cells if cell.rule.category != "collective"), whole_functions=True
    )


def _spin(case: _Case, plain: Bottleneck) -> Bottleneck:
    own = case.budgets.of_process(case.thread.pid)
    team = [
        one for one in own
        if one.tid != case.thread.tid and any(c.state != "off" and _native_team(case.profile, c) for c in one.cells)
    ]  # fmt: skip
    if not team:
        return plain
    cpus = f" on {counted(case.machine.cpus, 'CPU')}" if case.machine.cpus else ""
    return replace(
        plain, details=(f"{counted(len(team) + 1, 'thread')} of the process compute together{cpus}",)
    )


def _native_team(profile: Profile, cell: Cell) -> bool:
    return cell.stack is not None and not any(f.kind == "python" for f in profile.stack(cell.stack))


def _small_operators(profile: Profile, thread: ThreadBudget) -> Bottleneck | None:
    """Python and PyTorch's bookkeeping around operators that are too small, where they take more than the arithmetic does."""
    around, arithmetic = split_at_operators(profile, thread)
    of_torch = sum(c.ns for c in around if c.rule.category == "compute")
    lost = sum(cell.ns for cell in around)
    share = lost / thread.wall_ns if thread.wall_ns else 0.0
    if share < 0.2 or lost < _BOOKKEEPING * (lost + arithmetic) or of_torch * 5 < lost:
        return None
    lines = tuple(lines_of(profile, around, whole_functions=True)[:_FEW_LINES])
    return Bottleneck(
        "small-operators", "python", share, "runs Python and PyTorch's bookkeeping around small operators", lines,
        details=(f"the operators' own arithmetic takes {100 * arithmetic / thread.wall_ns:.0f} %",),
        do="fewer and larger operators (batch the loop into one tensor), torch.compile, foreach or fused optimizers",
    )  # fmt: skip


def _range(shares: Sequence[float]) -> str:
    if not shares:
        return "an unknown share"
    low, high = round(100 * min(shares)), round(100 * max(shares))
    return f"{high} %" if high - low < 3 else f"{low} to {high} %"


def _command(command: str, limit: int = 48) -> str:
    words = command.split()
    text = " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else "?"
    return text if len(text) <= limit else text[: limit - 1] + "…"


_EXPLAIN: Final[dict[str, Callable[[_Case, Bottleneck], Bottleneck]]] = {
    "loader-wait": _loader, "worker-pool": _pool, "queue-of-batches": _others, "thread-join": _others,
    "autograd-thread": _others, "gil": _gil, "gil-inlined": _gil, "lock": _lock, "own-lock": _lock, "no-cpu": _no_cpu,
    "collective-wait": _collective, "threads-spin": _spin, "threads-barrier": _spin, "child-process": _child,
}  # fmt: skip
