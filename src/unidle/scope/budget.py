"""The budget of a thread: each nanosecond of its wall time has one category.

The exact times on a CPU, blocked and waiting for a CPU come from the kernel; samples say how the first two split.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from unidle.ledger.apportion import by_weight
from unidle.scope.code_place import CodePlace, place_of
from unidle.scope.model import Profile, State, Thread
from unidle.scope.process_roles import Key, ProcessRoles, roles_of
from unidle.scope.rules import CATEGORIES, Category, RuleSet, StackRule, ThreadKind

Sampled = Mapping[State, Counter[tuple[StackRule, int]]]  # nanoseconds of a thread by state, rule and stack

FEW_SAMPLES: Final = 50
_Z95: Final = 1.96

UNSAMPLED: Final = StackRule("unsampled", "other", "was not sampled in")
NO_CPU: Final = StackRule(
    "no-cpu", "cpu_contention", "is ready to run and gets no CPU",
    "fewer threads or processes (OMP_NUM_THREADS, num_workers), or more CPUs for this job",
)  # fmt: skip
_NOT_WORK: Final = frozenset({"python", "idle", "other", "cpu_contention"})  # what no line of code is for
_UNSEEN: Final[Mapping[State, StackRule]] = {"on": UNSAMPLED, "off": UNSAMPLED, "runq": NO_CPU}


@dataclass(frozen=True, slots=True)
class Cell:
    """Time of a thread with one stack in one state, and the rule that it falls under. ``stack`` is None where unseen."""

    rule: StackRule
    stack: int | None
    state: State
    ns: int


@dataclass(frozen=True, slots=True)
class ThreadBudget:
    """A thread's wall time by category. ``ns`` sums to ``wall_ns``; so do the cells."""

    pid: int
    tid: int
    name: str
    wall_ns: int
    ns: Mapping[Category, int]
    cells: tuple[Cell, ...]
    samples: int
    interval_pct: Mapping[
        Category, float
    ]  # half the width of the 95 % interval of the share, from the samples alone

    @property
    def few(self) -> bool:
        """Whether there are too few samples to split its time."""
        return self.samples < FEW_SAMPLES

    def share(self, category: Category) -> float:
        return self.ns.get(category, 0) / self.wall_ns if self.wall_ns else 0.0

    @property
    def rest_ns(self) -> int:
        """Time without work: of a DataLoader worker, the time it waits for orders."""
        return sum(cell.ns for cell in self.cells if cell.rule.rest)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Those of all threads, and who they are."""

    roles: ProcessRoles
    threads: Mapping[Key, ThreadBudget]

    @property
    def training(self) -> tuple[ThreadBudget, ...]:
        """The training threads, in the order of ranks. One that nothing is known of is left out."""
        keys = [(subject.pid, subject.tid) for subject in self.roles.subjects]
        return tuple(self.threads[key] for key in keys if key in self.threads)

    @property
    def total_ns(self) -> Mapping[Category, int]:
        """The training threads' time together."""
        total: Counter[Category] = Counter()
        for one in self.training:
            total.update(one.ns)
        return {category: total[category] for category in CATEGORIES}

    def of_process(self, pid: int) -> tuple[ThreadBudget, ...]:
        return tuple(one for key, one in sorted(self.threads.items()) if key[0] == pid)


def budgets_of(profile: Profile, rules: RuleSet, roles: ProcessRoles | None = None) -> Budgets:
    """Every thread's budget. Pure, and the same for the same samples in any order."""
    roles = roles or roles_of(profile)
    by_thread: dict[Key, dict[State, Counter[tuple[StackRule, int]]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    counts: dict[Key, Counter[State]] = defaultdict(Counter)
    training = roles.training
    samples = [s for s in profile.samples if s.tid >= 0]  # streams of a device are no threads
    kinds: dict[Key, ThreadKind] = {
        (s.pid, s.tid): "training" if (s.pid, s.tid) in training else "other" for s in samples
    }
    keyed = [(s.stack, s.state, kinds[s.pid, s.tid]) for s in samples]
    found = rules.of_each(profile.frames, profile.stacks, keyed)
    for s, named in zip(samples, keyed, strict=True):
        by_thread[s.pid, s.tid][s.state][found[named], s.stack] += s.ns
        counts[s.pid, s.tid][s.state] += s.count
    by_thread = {key: joined(profile, sampled) for key, sampled in by_thread.items()}
    order = {rule.name: n for n, rule in enumerate(rules.rules)}
    name = _names(profile)
    threads = {(t.pid, t.tid): t for t in profile.threads if t.tid >= 0}
    for key in by_thread:
        if key not in threads:
            threads[key] = Thread(*key, "", 0, 0, 0, profile.start_ns, profile.end_ns)
    cells = {key: _cells(thread, by_thread.get(key, {}), order, name) for key, thread in threads.items()}
    return Budgets(
        roles,
        {
            key: _budget(threads[key], own, _resolved(key, own, cells, roles), counts[key])
            for key, own in cells.items()
            if own
        },
    )


def joined(profile: Profile, sampled: Sampled) -> dict[State, Counter[tuple[StackRule, int]]]:
    """A thread's time by state, rule and stack, with what joins in its new category. Sums stay as they are.

    Between two operators of ``y = torch.tanh(x)`` the interpreter looks up names, binds arguments and frees results. For
    a reader who timed that line, this is the line's work. So time of rules that say ``joins`` becomes what the same line
    of the thread's own code mostly does, if that is at least as much.
    """

    @cache
    def place(stack: int) -> CodePlace | None:
        return place_of(profile.stack(stack))

    work: dict[CodePlace | None, Counter[Category]] = defaultdict(Counter)
    joining: Counter[CodePlace | None] = Counter()
    for rows in sampled.values():
        for (rule, stack), ns in rows.items():
            if rule.joins:
                joining[place(stack)] += ns
            elif rule.category not in _NOT_WORK:
                work[place(stack)][rule.category] += ns
    becomes: dict[CodePlace | None, Category] = {
        at: main for at, ns in joining.items() if at and (main := _main(work[at], ns))
    }
    told: dict[State, Counter[tuple[StackRule, int]]] = defaultdict(Counter)
    for state, rows in sampled.items():
        for (rule, stack), ns in rows.items():
            main = becomes.get(place(stack)) if rule.joins else None
            told[state][_as(rule, main) if main else rule, stack] += ns
    return told


def _main(work: Counter[Category], least_ns: int) -> Category | None:
    category, ns = max(work.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
    return category if ns >= least_ns else None


@cache
def _as(rule: StackRule, category: Category) -> StackRule:
    return replace(rule, category=category)


def percentages(ns: Mapping[Category, int], places: int = 2) -> dict[str, float]:
    """Shares in percent that sum to 100 exactly at so many decimal places; nothing of nothing is all ``other``."""
    unit = 10**places
    weights = [max(ns.get(category, 0), 0) for category in CATEGORIES]
    if not any(weights):
        weights[-1] = 1
    parts = by_weight(100 * unit, weights)
    return {category: part / unit for category, part in zip(CATEGORIES, parts, strict=True)}


def _cells(
    thread: Thread,
    sampled: Mapping[State, Counter[tuple[StackRule, int]]],
    order: Mapping[str, int],
    name: Callable[[int], object],
) -> tuple[Cell, ...]:
    """The exact time of each state, split in proportion to its samples; a state without samples is marked as unseen."""
    exact: dict[State, int] = {"on": thread.on_ns, "off": thread.off_ns, "runq": thread.runq_ns}
    known = any(exact.values())
    cells: list[Cell] = []
    for state, total in exact.items():
        weights = sampled.get(state, Counter())
        total = total if known else sum(weights.values())
        if total <= 0:
            continue
        if state == "runq" and not sum(weights.values()):  # it waits where it runs
            weights = Counter(
                {(NO_CPU, stack): ns for (_, stack), ns in sampled.get("on", Counter()).items()}
            )
        if not sum(weights.values()):
            cells.append(Cell(_UNSEEN[state], None, state, total))
            continue
        # First by rule, then within it, so that a category does not depend on how stacks are numbered.
        of_rule: dict[tuple[int, str], list[tuple[StackRule, int, int]]] = defaultdict(list)
        for (rule, stack), ns in weights.items():
            of_rule[order.get(rule.name, len(order)), rule.category].append((rule, stack, ns))
        numbers = sorted(of_rule)
        for n, part in zip(
            numbers, by_weight(total, [sum(ns for *_, ns in of_rule[n]) for n in numbers]), strict=True
        ):
            rows = sorted(of_rule[n], key=lambda row: (-row[2], name(row[1])))
            for (rule, stack, _), ns in zip(rows, by_weight(part, [ns for *_, ns in rows]), strict=True):
                cells.append(Cell(rule, stack, state, ns))
    return tuple(cells)


def _names(profile: Profile) -> Callable[[int], object]:
    """What a stack is called, whatever its number is."""
    texts = [(f.kind, f.function, f.module + f.file, f.line) for f in profile.frames]

    @cache
    def name(stack: int) -> object:
        return [texts[n] for n in profile.stacks[stack]]

    return name


def _resolved(
    key: Key, own: Iterable[Cell], cells: Mapping[Key, tuple[Cell, ...]], roles: ProcessRoles
) -> Counter[Category]:
    """Time by category; waits for other threads of the process by what those do."""
    ns: Counter[Category] = Counter()
    waiting: Counter[StackRule] = Counter()
    for cell in own:
        if cell.rule.waits_for:
            waiting[cell.rule] += cell.ns
        else:
            ns[cell.rule.category] += cell.ns
    if not waiting:
        return ns
    whole = sum(cell.ns for cell in own)
    for rule, total in sorted(waiting.items(), key=lambda item: item[0].name):
        mix = helpers_mix(key, rule, cells, roles, least_ns=whole // 20)
        if not sum(mix.values()):
            ns[rule.category] += total
            continue
        weights = [mix[category] for category in CATEGORIES]
        for category, part in zip(CATEGORIES, by_weight(total, weights), strict=True):
            ns[category] += part
    return ns


def helpers_mix(
    key: Key, rule: StackRule, cells: Mapping[Key, tuple[Cell, ...]], roles: ProcessRoles, least_ns: int
) -> Counter[Category]:
    """What the threads do that a thread waits for: the autograd engine's, or other Python threads with work."""
    mix: Counter[Category] = Counter()
    for helper in helpers_of(key, rule, cells, roles, least_ns):
        for cell in cells[helper]:
            if not cell.rule.rest and not cell.rule.waits_for:
                mix[cell.rule.category] += cell.ns
    return mix


def helpers_of(
    key: Key, rule: StackRule, cells: Mapping[Key, tuple[Cell, ...]], roles: ProcessRoles, least_ns: int
) -> list[Key]:
    """The threads of the same process that a thread under this rule may wait for."""
    found = []
    for other in sorted(cells):
        if other[0] != key[0] or other == key:
            continue
        marks = roles.marks.get(other, {})
        wanted = (
            marks.get("engine", 0)
            if rule.name.startswith("autograd")
            else sum(marks.values()) - marks.get("helper", 0)
        )
        work = sum(cell.ns for cell in cells[other] if not cell.rule.rest and not cell.rule.waits_for)
        if wanted and work > least_ns:
            found.append(other)
    return found


def _budget(
    thread: Thread, cells: tuple[Cell, ...], ns: Counter[Category], counts: Mapping[State, int]
) -> ThreadBudget:
    wall = sum(cell.ns for cell in cells)
    return ThreadBudget(
        thread.pid, thread.tid, thread.name, wall, {category: ns[category] for category in CATEGORIES}, cells,
        sum(counts.values()), _intervals(cells, counts, wall),
    )  # fmt: skip


def _intervals(cells: Sequence[Cell], counts: Mapping[State, int], wall: int) -> dict[Category, float]:
    """Half widths in percent. The states' own times are exact, so only the split within each is uncertain.

    The shares are drawn towards the middle (two more samples either way), so that what was never seen is not certain.
    Source: Agresti and Coull, "Approximate is better than exact", The American Statistician 52, 1998.
    """
    variance: Counter[Category] = Counter()
    for state in ("on", "off"):
        total = sum(cell.ns for cell in cells if cell.state == state)
        n = counts.get(state, 0)
        if not total or not wall:
            continue
        weight = total / wall
        for category in CATEGORIES:
            share = (
                sum(cell.ns for cell in cells if cell.state == state and cell.rule.category == category)
                / total
            )
            drawn = (share * n + 2) / (n + 4)
            variance[category] += weight**2 * drawn * (1 - drawn) / (n + 4)  # type: ignore[assignment]
    return {category: round(100 * _Z95 * math.sqrt(variance[category]), 2) for category in CATEGORIES}
