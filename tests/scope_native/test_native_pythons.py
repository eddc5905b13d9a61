"""Other versions of the interpreter, shared and static builds, as far as they are here; recordings stand for the rest."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

import needs
from scope_native.pythons import VERSIONS, Interpreter, environment, interpreters, recorded
from unidle.scope.model import Profile
from unidle.scope.tiers import look, watch
from waiting import wait_until

pytestmark = needs.ebpf

WORK = """
import os, sys, threading
def key(v):
    return -v
def leaf():
    return sorted(range(2000), key=key)
def middle():
    while True:
        leaf()
def generates():
    yield middle()
def outer():
    list(generates())
"""
STARTS = {
    "alone": "ready()\nouter()\n",
    "thread": "threading.Thread(target=outer).start()\nready()\nthreading.Event().wait()\n",
    "fork": "child = os.fork()\nif child == 0:\n    outer()\nready()\nos.wait()\n",
    "spawn": "import subprocess\nready()\nsubprocess.run([sys.executable, '-S', '-c', {work!r} + 'outer()'])\n",
}
READY = "def ready():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"


@contextmanager
def started(interpreter: Interpreter, start: str) -> Iterator[subprocess.Popen[str]]:
    source = WORK + READY + STARTS[start].replace("{work!r}", repr(WORK))
    command: Sequence[str] = [*interpreter.command, "-S", "-c", source]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=environment(), start_new_session=True
    ) as process:
        try:
            assert process.stdin and process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True)
            process.kill()


def python_stacks(profile: Profile) -> list[list[str]]:
    """Python functions of each stack that was seen on a CPU, root first."""
    stacks = [profile.stack(s.stack) for s in profile.samples if s.state == "on" and s.count]
    return [[f.function for f in stack if f.kind == "python"] for stack in stacks]


def holds(profile: Profile, *names: str) -> bool:
    """Whether some stack's functions are these, from some place on."""
    rows = python_stacks(profile)
    return any(tuple(row[i : i + len(names)]) == names for row in rows for i in range(len(row)))


def mismatches(profile: Profile) -> float:
    return profile.quality.merge_mismatch_pct * profile.quality.samples / 100


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("interpreter", interpreters(), ids=str)
def test_stacks_are_whole_in_every_build_that_is_here(interpreter: Interpreter, start: str) -> None:
    with started(interpreter, start) as process, watch([process.pid]) as watched:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        seen: list[Profile] = []

        def work_is_seen() -> bool:
            watched.run(0.2)
            seen.append(watched.take())
            return holds(seen[-1], "outer", "generates", "middle", "leaf", "key")

        wait_until(work_is_seen, 60, "a whole stack")
        # The first samples of a program that has only just begun may come before its interpreter is known; later one may
        # fall between two instructions of a call.
        wait_until(
            lambda: work_is_seen() and mismatches(seen[-1]) < 1.5,
            60,
            "whole stacks of a process that is known",
        )
    profile = seen[-1]
    assert interpreter.version in {p.python for p in profile.processes}
    # `sorted` is the interpreter's own: it stands between its caller and its key function.
    between = [
        [f.kind for f in stack[at:to]]
        for stack in (profile.stack(s.stack) for s in profile.samples)
        if (at := next((i for i, f in enumerate(stack) if f.function == "leaf"), 0))
        and (to := next((i for i, f in enumerate(stack) if f.function == "key"), 0)) > at
    ]
    assert between and all("native" in kinds for kinds in between)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_looked_at_alive_or_stands_in_recordings(version: str) -> None:
    alive = [i for i in interpreters() if i.version == version]
    print(f"{version}: {', '.join(i.build for i in alive) or 'not here: recordings stand for it'}")
    recordings = recorded(version)
    assert alive or recordings
    for stack in recordings:
        assert stack.read_text().startswith("rooted true mismatch false")


@pytest.mark.parametrize("interpreter", interpreters(), ids=str)
def test_almost_every_stack_reaches_the_start_of_the_program(interpreter: Interpreter) -> None:
    with started(interpreter, "alone") as process:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        profile = look([process.pid], 1.0)
    assert profile.quality.rooted_pct >= 99
