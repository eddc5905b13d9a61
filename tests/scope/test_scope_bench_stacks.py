"""Stacks of other tools, as the benchmarks judge them."""

from __future__ import annotations

import os
from pathlib import Path

from benches import bench_module

stacks = bench_module("_stacks")
PERF = """\
 77
\tffffffff81000001 do_syscall_64+0x5 ([kernel.kallsyms])
\t    7f0000000001 mkl_blas_avx512_sgemm_kernel+0x10 (/x/libtorch_cpu.so)
\t    7f0000000002 [unknown] (/x/libtorch_cpu.so)
\t          4010a0 _start (/usr/bin/python3)

 77
\t    7f0000000003 at::native::add(at::Tensor const&, (anonymous namespace)::X) (/x/libtorch_cpu.so)
"""
BPFTRACE = """\
Attaching 2 probes...

@[
    0x7f031ea61860
    0x4810c0834820578d
]: 3
@[
    0x7f031ea61860
    0x4010a5
]: 1
@[]: 2
"""
SPY = (
    "<module> (train.py:9);at::addmm(at::Tensor const&) (libtorch_cpu.so);mkl_sgemm (libtorch_cpu.so) 3\n"
    "<module> (train.py:9);step (train.py:4);mkl_sgemm (libtorch_cpu.so);0x7f65 (libc.so.6) 1\n"
)


def test_perfs_stacks_are_turned_and_lose_the_kernels_frames() -> None:
    one, two = stacks.of_perf(PERF)
    assert one.functions == ("_start", "", "mkl_blas_avx512_sgemm_kernel")
    assert two.functions == ("at::native::add(at::Tensor const&, (anonymous namespace)::X)",)
    found = stacks.judged([one, two])
    assert (found.stacks, found.rooted, found.named, found.in_mkl, found.over_mkl) == (2, 50, 75, 1, 0)


def test_bpftraces_stacks_reach_the_root_where_they_end_in_the_programs_first_function() -> None:
    found = stacks.judged_addresses(BPFTRACE, 0x401080)
    assert (found.stacks, found.rooted, found.named) == (4, 25, None)


def test_a_process_begins_where_the_kernel_began_it() -> None:
    entry = stacks.entry_of(os.getpid())
    vector = Path("/proc/self/auxv").read_bytes()
    words = [int.from_bytes(vector[k : k + 8], "little") for k in range(0, len(vector), 8)]
    assert entry == dict(zip(words[::2], words[1::2], strict=True))[9]  # AT_ENTRY


def test_py_spys_stacks_count_as_often_as_they_were_seen() -> None:
    found = stacks.judged(stacks.of_spy(SPY))
    assert (found.stacks, found.in_mkl, found.over_mkl) == (4, 4, 75)
    assert found.named == 100 * 12 / 13


def test_of_ours_only_what_was_on_a_cpu_and_outside_the_kernel_is_judged() -> None:
    frames = [
        ["native", "_start"],
        ["native", "libc.so.6+0x77"],
        ["kernel", "do_syscall_64"],
        ["wait", "futex"],
    ]
    samples = [[1, 1, 0, "on", 4, 40], [1, 1, 1, "off", 9, 90]]
    found = stacks.judged(
        stacks.of_profile({"frames": frames, "stacks": [[0, 1, 2], [0, 3]], "samples": samples})
    )
    assert (found.stacks, found.rooted, found.named) == (4, 100, 50)


def test_nothing_seen_is_no_share() -> None:
    assert stacks.judged([]).rooted is None
