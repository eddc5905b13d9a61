"""Who is who among the watched processes: ranks, DataLoader workers, helpers, and which thread of each one trains."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from unidle.scope.model import Process, Profile
from unidle.scope.rules import RuleSet, StackRule, pattern_of

ProcessKind = Literal["rank", "loader", "pool", "launcher", "helper", "program"]
Key = tuple[int, int]  # pid and tid

# What a thread's stacks say of it; the first mark that fits a stack counts.
_MARKS: Final = {
    "loader": ["_worker_loop */torch/utils/data/_utils/worker.py"],
    "pool": [
        "worker */multiprocessing/pool.py", "_process_worker */concurrent/futures/process.py",
        "* */joblib/externals/loky/process_executor.py",
    ],
    "helper": [
        "main */multiprocessing/resource_tracker.py", "main */multiprocessing/forkserver.py",
        "_serve */multiprocessing/resource_sharer.py", "_feed */multiprocessing/queues.py",
        "_pin_memory_loop */torch/utils/data/_utils/pin_memory.py", "run */tqdm/_monitor.py",
        "_handle_tasks|_handle_workers|_handle_results */multiprocessing/pool.py",
        "* */torch/_inductor/compile_worker/*", "gomp_thread_start*|__kmp_launch_worker*|__kmp_launch_thread*",
        "c10d::ProcessGroupGloo::runLoop*|gloo::transport::*Loop::run*|c10::ThreadPool::main_loop*",
    ],
    "engine": [
        "torch::autograd::Engine::thread_init*|torch::autograd::python::PythonEngine::thread_init*",
    ],
    "launcher": [
        "* */torch/distributed/elastic/*", "ProcessContext.join|join */torch/multiprocessing/spawn.py",
        "* */accelerate/commands/*", "* */deepspeed/launcher/*",
    ],
    "step": [
        "torch::autograd::Engine::execute*|THPEngine_run_backward", "backward */torch/_tensor.py",
        "backward */torch/autograd/__init__.py", "step */torch/optim/*", "* */torch/optim/optimizer.py",
        "* */torch/distributed/distributed_c10d.py", "_call_impl|_wrapped_call_impl */torch/nn/modules/module.py",
        "__next__|_next_data */torch/utils/data/dataloader.py", "c10d::Work::wait*|c10d::Reducer::*",
        "* */torch/serialization.py", "* */jax/_src/*", "* */tensorflow/python/eager/*",
    ],
    "tensor": ["* [libtorch_python*]", "* [libtorch_cpu*]", "* */torch/*"],
    "python": ["* *"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A process whose budget is reported, and the thread of it that trains (or, of a server, answers)."""

    pid: int
    tid: int
    rank: int | None = None
    rank_is_inferred: bool = False  # by the order in which siblings were started


@dataclass(frozen=True, slots=True)
class ProcessRoles:
    """What each watched process is. ``subjects`` are in the order of ranks."""

    subjects: tuple[Subject, ...]
    kinds: Mapping[int, ProcessKind]
    marks: Mapping[Key, Mapping[str, int]]  # nanoseconds by mark

    @property
    def training(self) -> frozenset[Key]:
        return frozenset((subject.pid, subject.tid) for subject in self.subjects)

    def pids(self, kind: ProcessKind) -> tuple[int, ...]:
        return tuple(sorted(pid for pid, one in self.kinds.items() if one == kind))


def roles_of(profile: Profile) -> ProcessRoles:
    """Pure: the same for the same samples in any order."""
    marks = _marks(profile)
    processes = {process.pid: process for process in profile.processes}
    for pid, _ in [*marks, *((t.pid, t.tid) for t in profile.threads if t.tid >= 0)]:
        processes.setdefault(pid, Process(pid, ""))
    kinds = {pid: _kind(process, marks) for pid, process in processes.items()}
    busy = _busy(profile)
    best = {
        pid: _training_thread(pid, profile, marks, busy) for pid, kind in kinds.items() if kind == "program"
    }
    chosen = _subjects(processes, kinds, best, marks, busy)
    for subject in chosen:
        if len(chosen) > 1 or subject.rank is not None:
            kinds[subject.pid] = "rank"
    return ProcessRoles(chosen, kinds, marks)


@cache
def _marker() -> RuleSet:
    return RuleSet(
        [StackRule(name, "other", "", frame=tuple(map(pattern_of, texts))) for name, texts in _MARKS.items()]
    )


def _marks(profile: Profile) -> dict[Key, Mapping[str, int]]:
    found: dict[Key, Counter[str]] = defaultdict(Counter)
    names = _marker().of_each(
        profile.frames, profile.stacks, ((s.stack, s.state, "other") for s in profile.samples)
    )
    for s in profile.samples:
        if s.tid < 0:  # a stream of a device
            continue
        found[s.pid, s.tid][names[s.stack, s.state, "other"].name] += s.ns
    for thread in (t for t in profile.threads if t.tid >= 0):
        found.setdefault((thread.pid, thread.tid), Counter())
    return dict(found)


def _busy(profile: Profile) -> dict[Key, int]:
    """How long each thread was on a CPU or waited for one."""
    busy = {(t.pid, t.tid): t.on_ns + t.runq_ns for t in profile.threads}
    sampled: Counter[Key] = Counter()
    for s in profile.samples:
        if s.state != "off":
            sampled[s.pid, s.tid] += s.ns
    return {**sampled, **busy}


def _kind(process: Process, marks: Mapping[Key, Mapping[str, int]]) -> ProcessKind:
    """By the stacks of all its threads; by its command where nothing was seen of it."""
    total: Counter[str] = Counter()
    for (pid, tid), names in marks.items():
        if pid == process.pid:
            total.update(
                {name: ns for name, ns in names.items() if name not in ("helper", "engine") or tid == pid}
            )
    for kind in ("loader", "pool"):
        if total[kind] * 2 > sum(total.values()):
            return "loader" if kind == "loader" else "pool"
    if total["step"] or total["tensor"]:
        return "program"
    if total["helper"] * 2 > sum(total.values()) or "resource_tracker" in process.command:
        return "helper"
    if total["launcher"] * 2 > sum(total.values()) or "torchrun" in process.command:
        return "launcher"
    return "program"


def _training_thread(
    pid: int, profile: Profile, marks: Mapping[Key, Mapping[str, int]], busy: Mapping[Key, int]
) -> int:
    """The thread with most time in steps; without steps, with tensors; else the main one, if it does anything."""
    tids = sorted(tid for one, tid in marks if one == pid)
    for mark in ("step", "tensor"):
        scores = {tid: marks[pid, tid].get(mark, 0) for tid in tids}
        best = max(scores, key=lambda tid: (scores[tid], tid == pid, -tid), default=pid)
        if scores.get(best, 0) * 20 > profile.end_ns - profile.start_ns or (
            mark == "step" and scores.get(best, 0)
        ):
            return best
    of_python = [tid for tid in tids if marks[pid, tid].get("python") or marks[pid, tid].get("pool")] or tids
    best = max(of_python, key=lambda tid: (busy.get((pid, tid), 0), tid == pid, -tid), default=pid)
    return pid if pid in tids and busy.get((pid, pid), 0) * 4 >= busy.get((pid, best), 0) else best


def _subjects(
    processes: Mapping[int, Process], kinds: Mapping[int, ProcessKind], best: Mapping[int, int],
    marks: Mapping[Key, Mapping[str, int]], busy: Mapping[Key, int],
) -> tuple[Subject, ...]:  # fmt: skip
    ranked = [
        pid for pid in best if processes[pid].rank is not None and not _below_its_rank(pid, processes, kinds)
    ]
    if ranked:
        found = [Subject(pid, best[pid], processes[pid].rank) for pid in ranked]
        return tuple(sorted(found, key=lambda s: (s.rank or 0, s.pid)))
    steps = _with_steps(processes, best, marks)
    if not steps:
        everyone = (
            [pid for pid in best if processes[pid].parent not in best] or list(best) or sorted(processes)
        )
        work = {pid: sum(ns for (one, _), ns in busy.items() if one == pid) for pid in best or processes}
        most = max(sorted(work), key=lambda pid: work[pid], default=None)
        top = max(sorted(everyone), key=lambda pid: work.get(pid, 0), default=None)
        if top is None or most is None:
            return ()
        steps = [top if work.get(top, 0) * 5 >= work[most] else most]
    gangs = Counter(processes[pid].parent for pid in steps)
    siblings = len(steps) > 1 and len(gangs) == 1
    return tuple(
        Subject(pid, best.get(pid, pid), n if siblings else None, siblings) for n, pid in enumerate(steps)
    )  # fmt: skip


def _with_steps(
    processes: Mapping[int, Process], best: Mapping[int, int], marks: Mapping[Key, Mapping[str, int]]
) -> list[int]:
    """Processes that step. One below another that steps as much is its helper; one that hardly steps is none."""
    times = {pid: marks.get((pid, tid), {}).get("step", 0) for pid, tid in best.items()}
    least = max(times.values(), default=0) // 20
    if not least:
        return []
    stepping = {pid: ns for pid, ns in times.items() if ns > least}

    def is_helper(pid: int) -> bool:
        above, seen = processes[pid].parent, {pid}
        while above in processes and above not in seen:
            if stepping.get(above, 0) * 2 >= stepping[pid]:
                return True
            seen.add(above)
            above = processes[above].parent
        return False

    return [pid for pid in sorted(stepping) if not is_helper(pid)]


def _below_its_rank(pid: int, processes: Mapping[int, Process], kinds: Mapping[int, ProcessKind]) -> bool:
    """Whether it only inherited its rank's environment: a process above it is that rank."""
    rank, above, seen = processes[pid].rank, processes[pid].parent, {pid}
    while above in processes and above not in seen:
        if processes[above].rank == rank and kinds[above] == "program":
            return True
        seen.add(above)
        above = processes[above].parent
    return False
