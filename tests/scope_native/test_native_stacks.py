"""Stacks of real processes: from the start of the program through Python and native code into the kernel."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

import needs
from scope_native.compiled import compiled, started
from scope_native.programs import running
from unidle.scope.model import Profile
from unidle.scope.tiers import look, watch
from waiting import wait_until

pytestmark = needs.ebpf

NESTED = """
def leaf(n):
    for _ in range(n):
        pass
def middle():
    while True:
        leaf(100_000)
def outer():
    middle()
"""


# As hand-written kernels do it: no unwind data, and below the callers an array that nobody has written to yet.
KERNELS = """
#include <unistd.h>
#define KERNEL(name) __asm__(".text\\n.type " #name ",@function\\n" #name ":\\n" \
    "sub $0x40, %rsp\\n mov %rbp, 8(%rsp)\\n mov %rsp, %rbp\\n" \
    "sub %rdi, %rsp\\n and $-4096, %rsp\\n mov %rbp, 0x78(%rsp)\\n xor %ebp, %ebp\\n" \
    "1: dec %rsi\\n jnz 1b\\n mov 0x78(%rsp), %rsp\\n mov 8(%rsp), %rbp\\n add $0x40, %rsp\\n ret\\n" \
    ".size " #name ", .-" #name "\\n")
KERNEL(even_kernel);
KERNEL(odd_kernel);
extern long even_kernel(long bytes, long turns), odd_kernel(long bytes, long turns);
long even(long n) { return even_kernel(300000, n) + 1; }
long odd(long n) { return odd_kernel(300000, n) + 1; }
int main(void) {
    if (write(1, "ready\\n", 6) != 6) return 1;
    for (;;) { even(50000); odd(50000); }
}
"""


def python_names(profile: Profile, stack: int) -> list[str]:
    return [f.function for f in profile.stack(stack) if f.kind == "python"]


def seconds_below(profile: Profile, *names: str) -> float:
    """Seconds on a CPU in stacks whose Python frames have these names, in this order, one right below the other."""
    found = 0
    for sample in profile.samples:
        stack = python_names(profile, sample.stack)
        if sample.state == "on" and any(stack[i : i + len(names)] == list(names) for i in range(len(stack))):
            found += sample.ns
    return found / 1e9


def test_python_frames_stand_between_the_start_of_the_program_and_the_leaf() -> None:
    with running(NESTED + "print('ready', flush=True)\nouter()\n") as process:
        profile = look([process.pid], 1.0)
    on = sum(s.ns for s in profile.samples if s.state == "on") / 1e9
    assert seconds_below(profile, "<module>", "outer", "middle") > 0.95 * on
    assert seconds_below(profile, "outer", "middle", "leaf") > 0.8 * on
    first = [profile.stack(s.stack)[0] for s in profile.samples if s.state == "on" and s.count]
    assert {f.function for f in first} <= {"_start", "(too short to be sampled)"}
    assert profile.quality.rooted_pct >= 99
    assert profile.quality.merge_mismatch_pct <= 0.1
    assert profile.quality.drops == 0
    assert profile.processes[0].python == f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_lines_are_those_that_run() -> None:
    source = "def f():\n    while True:\n        x = sum(range(1000))\nprint('ready', flush=True)\nf()\n"
    with running(source) as process:
        profile = look([process.pid], 0.6)
    lines = {f.line for s in profile.samples for f in profile.stack(s.stack) if f.function == "f"}
    # `running` puts one line before the program.
    assert lines <= {3, 4}
    assert 4 in lines


def test_a_thread_that_waits_shows_where_in_python() -> None:
    source = "def nap():\n    time.sleep(100)\nprint('ready', flush=True)\nnap()\n"
    with running(source) as process:
        profile = look([process.pid], 0.4)
    (sample,) = [s for s in profile.samples if s.state == "off"]
    assert python_names(profile, sample.stack) == ["<module>", "nap"]
    assert profile.stack(sample.stack)[-1].function == "sleep"


def test_threads_have_their_own_stacks() -> None:
    source = (
        NESTED
        + "def other():\n    while True:\n        leaf(100_000)\n"
        + "threading.Thread(target=other, daemon=True).start()\nprint('ready', flush=True)\nouter()\n"
    )
    with running(source) as process:
        profile = look([process.pid], 1.0)
    assert seconds_below(profile, "middle", "leaf") > 0
    assert seconds_below(profile, "run", "other") + seconds_below(profile, "Thread.run", "other", "leaf") > 0
    for sample in profile.samples:
        names = python_names(profile, sample.stack)
        assert not ("other" in names and "middle" in names)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_children_have_python_stacks_of_their_own(start: str) -> None:
    source = NESTED + "print('ready', flush=True)\nsys.stdin.readline()\n"
    if start == "fork":
        source += "if os.fork() == 0:\n    outer()\nos.wait()\n"
    else:
        source += f"import subprocess\nsubprocess.run([sys.executable, '-c', {NESTED + 'outer()'!r}])\n"
    with running(source) as process, watch([process.pid]) as watched:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()

        def child_is_seen() -> bool:
            watched.run(0.1)
            profile = watched.take()
            return any(
                python_names(profile, s.stack)[-3:] == ["outer", "middle", "leaf"] and s.pid != process.pid
                for s in profile.samples
            )

        wait_until(child_is_seen, 60, "the child's Python stack")


def test_a_child_that_has_ended_is_resolved_by_what_its_parent_knows() -> None:
    source = (
        NESTED.replace("while True:", "for _ in range(20):")
        + "print('ready', flush=True)\nwhile True:\n    if os.fork() == 0:\n        outer()\n        os._exit(0)\n"
        "    os.wait()\n"
    )
    with running(source) as process:
        profile = look([process.pid], 1.5)
    children = [s for s in profile.samples if s.pid != process.pid and s.state == "on" and s.count]
    named = [s for s in children if "middle" in python_names(profile, s.stack)]
    assert len(named) > 0.7 * len(children)


def test_code_in_the_kernel_stands_above_the_call_that_led_there() -> None:
    source = "print('ready', flush=True)\nf = open('/dev/zero', 'rb', buffering=0)\nb = bytearray(1 << 20)\n"
    source += "def reads():\n    while True:\n        f.readinto(b)\nreads()\n"
    with running(source) as process:
        profile = look([process.pid], 0.8)
    in_kernel = [
        [f.kind for f in profile.stack(s.stack)]
        for s in profile.samples
        if s.state == "on" and profile.stack(s.stack)[-1].kind == "kernel"
    ]
    assert in_kernel
    for kinds in in_kernel:
        assert kinds == sorted(kinds, key=lambda kind: kind == "kernel")


def test_a_program_without_python_has_native_stacks() -> None:
    with running(
        "print('ready', flush=True)\nos.execv('/bin/sh', ['sh', '-c', 'while :; do :; done'])\n"
    ) as process:
        wait_until(lambda: "sh" in Path(f"/proc/{process.pid}/comm").read_text(), what="the exec")
        profile = look([process.pid], 0.5)
    assert profile.processes[0].python == ""
    assert all(f.kind != "python" for f in profile.frames)
    assert any(s.state == "on" and s.count for s in profile.samples)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its kernels are written for x86-64")
def test_callers_are_found_beyond_an_array_on_the_stack_that_nobody_has_written_to(tmp_path: Path) -> None:
    with started(compiled(KERNELS, tmp_path / "kernels")) as process:
        profile = look([process.pid], 1.0)
    stacks = [s for s in profile.samples if s.state == "on" and s.count]
    tails = {tuple(f.function for f in profile.stack(s.stack) if f.kind == "native")[-3:] for s in stacks}
    assert {("main", "even", "even_kernel"), ("main", "odd", "odd_kernel")} <= tails
    assert {tail[-2:] for tail in tails if tail[-1].endswith("kernel")} == {
        ("even", "even_kernel"),
        ("odd", "odd_kernel"),
    }
    assert profile.quality.rooted_pct >= 99
