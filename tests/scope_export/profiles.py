"""Profiles for the tests of exports: a small one of two ranks, hostile ones, and large ones made by a rule."""

from __future__ import annotations

import random
from dataclasses import replace

from unidle.scope.model import (
    Call,
    Frame,
    Process,
    Profile,
    Quality,
    Sample,
    Span,
    StackMemory,
    State,
    Thread,
)

MS = 1_000_000
START = 5_000_000_000_000
WALL = 1_700_000_000_000_000_000

HOSTILE = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "a;b c 12\n# d 7",
    "quote\"'`back\\slash",
    "nul\0bell\a\x1b[31m",
    "half \ud800 pair \udfff",
    "\u202eevil\u2066",
    "std::vector<int, std::allocator<int>>::push_back(int&&)",
    "#hash",
    "名前 ünï 🎉",
    "",
    " lead and trail ",
    "${x} {{y}} %s %n",
)

FRAMES = (
    Frame("python", "<module>", "/app/train.py", 88),
    Frame("python", "train_step", "/app/train.py", 41),
    Frame("python", "train_step", "/app/train.py", 43),
    Frame("python", "forward", "/app/net.py", 12),
    Frame("native", "at::_ops::addmm::call(at::Tensor const&, at::Tensor const&)", "", 0, "libtorch_cpu.so"),
    Frame("native", "mkl_blas_avx512_sgemm_kernel", "", 0, "libmkl_core.so"),
    Frame("python", "__next__", "/usr/lib/torch/utils/data/dataloader.py", 701),
    Frame("native", "pthread_cond_timedwait", "", 0, "libc.so.6"),
    Frame("kernel", "futex_wait_queue"),
    Frame("wait", "futex"),
    Frame("python", "all_reduce", "/usr/lib/torch/distributed/distributed_c10d.py", 2501),
    Frame("native", "gloo::AllreduceLocal::run()", "", 0, "libtorch_cpu.so"),
    Frame("wait", "recv tcp"),
)
STACKS = (
    (0, 1, 3, 4, 5),  # compute
    (0, 2, 6, 7, 8, 9),  # data
    (0, 1, 10, 11, 12),  # collective
    (0, 1, 3),  # Python
    (),  # nothing known
)


def sample(pid: int, stack: int, state: State, count: int, tid: int = 0) -> Sample:
    return Sample(pid, tid or pid, stack, state, count, count * 10 * MS + stack)


def small() -> Profile:
    """Ten seconds of two ranks; rank 1 waits more for data."""
    samples = (
        sample(100, 0, "on", 500), sample(100, 3, "on", 100), sample(100, 1, "off", 150),
        sample(100, 2, "off", 200), sample(100, 0, "runq", 50), sample(100, 5 - 1, "off", 30, tid=101),
        sample(200, 0, "on", 300), sample(200, 3, "on", 100), sample(200, 1, "off", 550), sample(200, 2, "off", 50),
    )  # fmt: skip
    threads = (
        Thread(100, 100, "python", 6000 * MS, 3500 * MS, 500 * MS, START, START + 10_000 * MS),
        Thread(100, 101, "pt_autograd_0", 0, 300 * MS, 0, START, START + 10_000 * MS),
        Thread(200, 200, "python", 4000 * MS, 6000 * MS, 0, START, START + 10_000 * MS),
    )
    spans = (
        *(
            Span(
                100,
                100,
                "gloo::allreduce",
                "collective",
                START + k * 900 * MS,
                START + (k * 900 + 120) * MS,
                4096,
            )
            for k in range(10)
        ),
        Span(100, 100, "inner", "copy", START + 10 * MS, START + 20 * MS),
        Span(100, 100, "crossing", "copy", START + 100 * MS, START + 200 * MS),
        Span(200, 200, "gc", "gc", START + 5 * MS, START + 5 * MS),
    )
    return Profile(
        tier="T0", start_ns=START, end_ns=START + 10_000 * MS, frames=FRAMES, stacks=STACKS, samples=samples,
        threads=threads,
        processes=(
            Process(100, "python train.py", 1, "3.11", 0, "job-7"),
            Process(200, "python train.py", 1, "3.11", 1, "job-7"),
        ),
        calls=(Call(100, 100, "at::_ops::addmm::call", "operator", 6400), Call(100, 100, "malloc", "alloc", 12, 3400, 99)),
        spans=spans,
        memory=(
            StackMemory(100, 0, "host", 10_000_000, 100, 4_000_000, 40), StackMemory(100, 3, "cuda:0", 2_000_000, 2, 2_000_000, 2),
            StackMemory(200, 0, "host", 6_000_000, 60, 0, 0),
        ),
        quality=Quality(2030, 3, 99.9, 98.5, 0.04, 0.2, 0.8, 0.1, 0, 420 * MS, ("kernel stacks were left out",)),
        misses=("device kernels", "file contents"),
        wall_start_ns=WALL,
    )  # fmt: skip


def hostile() -> Profile:
    """Every name that a format could trip over, as function, file, module, thread, command, device and span."""
    frames = tuple(
        Frame(("python", "native", "kernel", "wait", "device")[k % 5], name, name if k % 2 else "", k, name)
        for k, name in enumerate(HOSTILE)
    )
    stacks = tuple((k, (k + 1) % len(frames)) for k in range(len(frames)))
    base = small()
    return replace(
        base,
        frames=frames,
        stacks=stacks,
        samples=tuple(Sample(7, 7, k, ("on", "off", "runq")[k % 3], 1, 10 * MS) for k in range(len(stacks))),
        threads=tuple(Thread(7, 70 + k, name, 1, 1, 1, START, START) for k, name in enumerate(HOSTILE)),
        processes=tuple(Process(7 + k, name, 1, "", None, name) for k, name in enumerate(HOSTILE)),
        spans=tuple(
            Span(7, 7, name, name, START + k * MS, START + k * MS + 5, k) for k, name in enumerate(HOSTILE)
        ),
        memory=tuple(StackMemory(7, k, name, 10, 1, 5, 1) for k, name in enumerate(HOSTILE)),
        calls=(),
        quality=replace(base.quality, notes=HOSTILE),
        misses=HOSTILE,
    )


def empty() -> Profile:
    return Profile(tier="T2", start_ns=START, end_ns=START)


def single() -> Profile:
    return Profile(
        tier="T1", start_ns=START, end_ns=START + MS, frames=(Frame("python", "f"),), stacks=((0,),),
        samples=(Sample(1, 1, 0, "on", 1, 7),), quality=Quality(samples=1),
    )  # fmt: skip


def deep(frames: int = 2000) -> Profile:
    """One recursion, that many frames deep."""
    made = (Frame("python", "recur", "deep.py", 3), Frame("python", "recur", "deep.py", 5))
    stack = tuple(k % 2 for k in range(frames))
    samples = (Sample(1, 1, 0, "on", 10, 100 * MS), Sample(1, 1, 1, "on", 1, 10 * MS))
    return Profile(
        tier="T0", start_ns=START, end_ns=START + 1000 * MS, frames=made, stacks=(stack, stack[: frames // 2]),
        samples=samples, quality=Quality(samples=11),
    )  # fmt: skip


def large(frames: int, stacks: int, samples: int, *, threads: int = 16, seed: int = 1) -> Profile:
    """Stacks that branch like those of a program: each goes on where an earlier one left off."""
    chance = random.Random(seed)
    rows = tuple(
        Frame(("python", "native", "native", "kernel")[k % 4], f"function_{k}", f"file_{k % 97}.py" if k % 4 == 0 else "", k % 900, f"lib{k % 31}.so")
        for k in range(frames)
    )  # fmt: skip
    made: list[tuple[int, ...]] = [(0,)]
    for k in range(1, stacks):
        trunk = (
            made[chance.randrange(max(1, len(made) // 2), len(made) + 1) - 1] if len(made) > 1 else made[0]
        )
        kept = trunk[: max(1, chance.randrange(len(trunk)) + 1)][:60]
        made.append((*kept, *((k * 7 + j) % frames for j in range(chance.randrange(1, 12)))))
    seen = tuple(
        Sample(1, 1 + k % threads, k % stacks, ("on", "off", "runq")[k % 3], 1, 10 * MS)
        for k in range(samples)
    )
    return Profile(
        tier="T0", start_ns=START, end_ns=START + 10_000 * MS, frames=rows, stacks=tuple(made), samples=seen,
        processes=(Process(1, "python train.py", rank=0),), quality=Quality(samples=samples),
    )  # fmt: skip
