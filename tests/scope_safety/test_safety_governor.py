"""The governor: what is called too often loses its probes, the dearest first, and all else is counted to the last call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import needs
from scope_calls.targets import C_HEAD, Target, compiled, counting, counts, started
from waiting import wait_until

STUB = """
__attribute__((visibility("default"))) int cudaLaunchKernel(void *f) { return 0; }
__attribute__((visibility("default"))) int cudaMemcpyAsync(void *to, void *from, long n) { return 0; }
__attribute__((visibility("default"))) int cudaStreamSynchronize(void *s) { return 0; }
"""

# One thread calls one function as fast as it can; another one calls two others now and then, and counts that itself.
USER = """
#include <pthread.h>
int cudaLaunchKernel(void *f);
int cudaMemcpyAsync(void *to, void *from, long n);
int cudaStreamSynchronize(void *s);
static volatile int stop;
static volatile long rare;
static void *launch(void *with) { while (!stop) cudaLaunchKernel(with); return 0; }
static void *copy(void *with) {
    while (!stop) {
        cudaMemcpyAsync(with, with, 8);
        cudaStreamSynchronize(with);
        rare++;
        usleep(20000);
    }
    return 0;
}
int main(void) {
    pthread_t a, b;
    step();
    pthread_create(&b, 0, copy, 0);
    pthread_create(&a, 0, launch, 0);
    step();
    stop = 1;
    pthread_join(a, 0);
    pthread_join(b, 0);
    char text[40];
    write(1, text, sprintf(text, "%ld\\n", rare));
    step();
    return 0;
}
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    compiled(STUB, tmp_path / "libcudart.so.13", "-shared", "-fPIC", head="")
    return compiled(
        USER, tmp_path / "user", "-pthread", f"-Wl,-rpath,{tmp_path}", tmp_path / "libcudart.so.13", head=C_HEAD
    )  # fmt: skip


def a_look_at(target: Target, *, multi: bool) -> None:
    """Looks until the governor has acted and for a while after, and compares what is rare with the program's count."""
    target.line()
    # A budget that one function alone exceeds many times over (of a CPU that is shared, too), and the rest never.
    with counting([target.pid], cuda=True, multi=multi, budget_pct=5.0) as calls:
        before = dict(calls.probes)["cuda"]
        target.go()
        target.line()
        wait_until(lambda: calls.run(0.05) and dict(calls.probes)["cuda"] < before, 60, "the governor")
        first = counts(calls.take())
        calls.run(0.5)
        target.go()
        rare = int(target.line())
        after = counts(calls.take())
        notes = [note for note in calls.notes if "taken off" in note]
    assert len(notes) == 1
    assert notes[0].startswith("cuda: the dearest probes taken off after ")
    assert notes[0].endswith("(budget 5 %); counts are partial of cudaLaunchKernel")
    assert first["cudaLaunchKernel"] > 1000
    assert after["cudaLaunchKernel"] == 0
    assert rare > 5
    for name in ("cudaMemcpyAsync", "cudaStreamSynchronize"):
        assert first[name] + after[name] == rare, name


@needs.ebpf
def test_only_the_function_that_is_called_too_often_loses_its_probe_and_no_other_call_is_missed(
    user: Path,
) -> None:
    with started([user]) as target:
        a_look_at(target, multi=True)


_ANOTHER = """
import os, sys, unidle_scope
calls = unidle_scope.Calls([os.getpid()], {"cuda": True})
print("up", flush=True)
sys.stdin.read()
"""


@needs.ebpf
def test_the_cost_of_a_probe_is_known_while_another_profiler_has_measured_it_too(user: Path) -> None:
    """Each probes functions of the native part, whose file both have mapped."""
    with subprocess.Popen(
        [sys.executable, "-c", _ANOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as another:
        assert another.stdin is not None
        assert another.stdout is not None
        try:
            assert another.stdout.readline() == "up\n"
            with started([user]) as target:
                a_look_at(target, multi=True)
        finally:
            another.kill()


@needs.ebpf
def test_one_by_one_only_the_dearest_function_loses_its_probe(user: Path) -> None:
    with started([user]) as target:
        a_look_at(target, multi=False)


@needs.ebpf
def test_a_function_that_lost_its_probe_gets_none_in_a_library_that_is_loaded_later(tmp_path: Path) -> None:
    """Another copy of the library, as another container has it, is probed without what is too dear."""
    compiled(STUB, tmp_path / "libcudart.so.13", "-shared", "-fPIC", head="")
    compiled(STUB + "int more;", tmp_path / "libcudart.so.12", "-shared", "-fPIC", head="")
    source = """
    #include <dlfcn.h>
    typedef int (*function)(void *);
    static function named(const char *file, const char *name) {
        return (function)dlsym(dlopen(file, RTLD_NOW), name);
    }
    int main(int n, char **paths) {
        function a = named(paths[1], "cudaLaunchKernel");
        step();
        fcntl(0, 4, 2048);
        char c;
        while (read(0, &c, 1) != 1) for (int i = 0; i < 1000; i++) a(0);
        fcntl(0, 4, 0);
        function b = named(paths[2], "cudaLaunchKernel"), s = named(paths[2], "cudaStreamSynchronize");
        step();
        for (int i = 0; i < 700; i++) { b(0); s(0); }
        step();
        return 0;
    }
    """
    program = compiled(source, tmp_path / "loads", "-ldl", head="#include <fcntl.h>\n" + C_HEAD)
    paths = [str(tmp_path / f"libcudart.so.{n}") for n in (13, 12)]
    with started([program, *paths]) as target:
        target.line()
        with counting([target.pid], cuda=True, budget_pct=5.0) as calls:
            before = dict(calls.probes)["cuda"]
            target.go()
            wait_until(lambda: calls.run(0.05) and dict(calls.probes)["cuda"] < before, 60, "the governor")
            calls.take()
            on = dict(calls.probes)["cuda"]
            target.go()
            target.line()
            wait_until(lambda: calls.run(0.05) and dict(calls.probes)["cuda"] > on, what="the second library")
            target.step()
            told = counts(calls.take())
    assert told["cudaLaunchKernel"] == 0
    assert told["cudaStreamSynchronize"] == 700
