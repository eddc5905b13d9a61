"""Children, libraries that come later, containers, files and sockets; and that nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from scope_calls.targets import C_HEAD, compiled, counting, counts, held, n_bytes, python, started
from waiting import wait_until

STUB = "int cudaMemcpy(void *to, void *from, unsigned long n, int kind) { return 0; }\n"


@needs.ebpf
def test_a_library_that_is_loaded_later_is_probed_then(tmp_path: Path) -> None:
    stub = compiled(STUB, tmp_path / "libcudart.so.13", "-shared", "-fPIC", head="")
    source = f"""
    import ctypes
    step()
    stub = ctypes.CDLL({str(stub)!r})
    step()
    for _ in range(7):
        stub.cudaMemcpy(0, 0, ctypes.c_ulong(100), 0)
    step()
    """
    with started(python(source)) as target:
        target.line()
        with counting([target.pid], cuda=True) as calls:
            assert calls.probes == []
            target.step()
            wait_until(lambda: calls.run(0.05) and calls.probes, what="the probes of the new library")
            target.step()
            taken = calls.take()
    assert counts(taken) == {"cudaMemcpy": 7}
    assert n_bytes(taken, "cudaMemcpy") == 700


@needs.ebpf
def test_a_library_in_another_mount_namespace_is_probed_even_when_its_file_is_gone(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    stub = compiled(STUB, tmp_path / "stub.so", "-shared", "-fPIC", head="")
    source = f"""
    import ctypes, shutil
    shutil.copy({str(stub)!r}, {str(hidden / "libcudart.so.13")!r})
    stub = ctypes.CDLL({str(hidden / "libcudart.so.13")!r})
    os.unlink({str(hidden / "libcudart.so.13")!r})
    step()
    for _ in range(5):
        stub.cudaMemcpy(0, 0, ctypes.c_ulong(10), 0)
    step()
    """
    inside = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hidden} && exec "$@"', "sh"]
    with started([*inside, *python(source)]) as target:
        target.line()
        assert not list(hidden.iterdir())
        with counting([target.pid], cuda=True) as calls:
            target.step()
            taken = calls.take()
    assert counts(taken) == {"cudaMemcpy": 5}


FORKS = """
#include <signal.h>
#include <sys/wait.h>
int main(void) {
    sigset_t usr1;
    int got;
    sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, 0); /* one that comes before a child waits for it is not lost */
    step();
    for (int n = 0; n < 5; n++)
        if (!fork()) { sigwait(&usr1, &got); for (int i = 0; i < 100; i++) malloc(10); _exit(0); }
    step();
    while (wait(0) > 0);
    for (int i = 0; i < 3; i++) malloc(10);
    step();
    return 0;
}
"""


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@needs.ebpf
@pytest.mark.parametrize("follow", [True, False])
def test_forked_children_are_counted_by_their_own_pid_if_they_are_followed(
    tmp_path: Path, follow: bool
) -> None:
    program = compiled(FORKS, tmp_path / "forks")
    with started([program]) as target:
        target.line()
        with counting([target.pid], malloc=True, follow=follow) as calls:
            target.step()
            born = _children(target.pid)
            # What follows memory is put into each process when it is seen to be there.
            wait_until(lambda: calls.run(0.05) == (6 if follow else 1), what="the children")
            target.go()
            for pid in born:
                os.kill(pid, signal.SIGUSR1)
            target.line()
            taken = calls.take()
    assert counts(taken, target.pid)["malloc"] == 3
    children = {row[0] for row in taken["calls"]} - {target.pid}
    assert len(children) == (5 if follow else 0)
    assert all(counts(taken, child)["malloc"] == 100 for child in children)
    assert held(taken)[1] == (503 if follow else 3)


@needs.ebpf
def test_another_process_with_the_same_library_is_not_counted(tmp_path: Path) -> None:
    program = compiled(FORKS, tmp_path / "forks")
    with started([program]) as target, started([program]) as other:
        target.line(), other.line()
        with counting([target.pid], malloc=True) as calls:
            other.step()
            assert calls.take()["calls"] == []


@needs.ebpf
def test_bytes_of_files_and_sockets_are_exact_on_both_ends(tmp_path: Path) -> None:
    source = f"""
    import socket, threading
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    peer = server.accept()[0]
    ends = os.pipe()
    out = os.open({str(tmp_path / "file")!r}, os.O_RDWR | os.O_CREAT)
    step()
    sender = threading.Thread(target=lambda: [client.sendall(b"x" * 70_000) for _ in range(10)])
    sender.start()
    got = 0
    while got < 700_000:
        got += len(peer.recv(65536))
    sender.join()
    for _ in range(8):
        os.write(out, b"y" * 5000)
        os.write(ends[1], b"z")
    os.fsync(out)
    os.pread(out, 100_000, 0)
    step()
    """
    with started(python(source)) as target:
        target.line()
        with counting([target.pid], tcp=True, files=True) as calls:
            target.step()
            taken = calls.take()
    assert n_bytes(taken, "send") == n_bytes(taken, "receive") == 700_000
    files = {row[2]: (row[4], row[6]) for row in taken["calls"] if row[3] == "file"}
    assert files == {"write": (8, 40_000), "fsync": (1, 0), "pread64": (1, 40_000)}
    assert all(row[5] > 0 for row in taken["calls"] if row[3] == "file")


THROWS = """
#include <cstdio>
#include <stdexcept>
#include <unistd.h>
namespace c10d { struct Work { int wait(long n); }; }
__attribute__((noinline)) int c10d::Work::wait(long n) {
    if (n % 3 == 0) throw std::runtime_error("peer is gone");
    usleep(200);
    return n;
}
extern "C" void step(void) { char b; write(1, "done\\n", 5); if (read(0, &b, 1) != 1) _exit(0); }
"""


@needs.ebpf
def test_an_exception_through_a_timed_function_does_no_harm(tmp_path: Path) -> None:
    library = compiled(THROWS, tmp_path / "libtorch_cpu.so", "-shared", "-fPIC", head="", compiler="g++")
    user = """
    #include <stdexcept>
    namespace c10d { struct Work { int wait(long n); }; }
    extern "C" void step(void);
    int main() {
        c10d::Work work;
        step();
        for (long n = 0; n < 30; n++)
            try { work.wait(n); } catch (std::exception &) {}
        step();
    }
    """
    program = compiled(user, tmp_path / "user", f"-Wl,-rpath,{tmp_path}", library, head="", compiler="g++")
    with started([program]) as target:
        target.line()
        with counting([target.pid], collectives=True) as calls:
            assert target.step() == "done"
            taken = calls.take()
    assert counts(taken) == {"c10d::Work::wait": 30}
    spans = [row for row in taken["spans"] if row[2] == "c10d::Work::wait"]
    assert len(spans) == 20
    assert all(row[5] - row[4] >= 200_000 for row in spans)


SPIN = """
#include <dlfcn.h>
#include <signal.h>
static volatile long n;
static void told(int s) { char b[32]; int k = sprintf(b, "%ld\\n", n); write(1, b, k); }
int main(void) {
    signal(SIGUSR1, told);
    step();
    for (;;) { free(malloc(10)); n++; }
}
"""


@needs.ebpf
def test_the_governor_takes_off_what_costs_too_much_and_says_so(tmp_path: Path) -> None:
    program = compiled(SPIN, tmp_path / "spin")
    with started([program]) as target:
        target.line()
        with counting([target.pid], malloc=True, gc=True, tcp=True, budget_pct=2.0) as calls:
            assert [name for name, _ in calls.probes] == ["malloc"]
            target.go()
            wait_until(lambda: calls.run(0.05) and not calls.probes, what="the governor")
            (note,) = [note for note in calls.notes if "taken off" in note]
            assert note.startswith("malloc: probes taken off after ") and "(budget 2 %)" in note
            calls.take()
            calls.run(0.1)
            assert calls.take()["calls"] == []


@needs.ebpf
def test_what_stays_within_the_budget_stays_on(tmp_path: Path) -> None:
    source = """
    import time, gc
    gc.disable()
    step()
    for _ in range(20):
        gc.collect(0)
        time.sleep(0.05)
    step()
    """
    with started(python(source)) as target:
        target.line()
        with counting([target.pid], gc=True, budget_pct=2.0) as calls:
            target.go()
            for _ in range(20):
                calls.run(0.05)
            target.line()
            assert [name for name, _ in calls.probes] == ["gc"]
            assert counts(calls.take()) == {"gc_collect_main": 20}


PROFILER = """
import sys, time, unidle_scope
calls = unidle_scope.Calls([int(sys.argv[1])], {"only": True, "malloc": True, "tcp": True, "budget_pct": 1e9})
print("on", flush=True)
calls.run(60)
"""


@needs.ebpf
def test_no_probe_is_left_when_the_profiler_is_killed(tmp_path: Path) -> None:
    program = compiled(FORKS, tmp_path / "forks")
    with started([program]) as target:
        target.line()
        before = code_of_malloc(target.pid)
        with started([sys.executable, "-c", PROFILER, str(target.pid)]) as profiler:
            assert profiler.line() == "on"
            assert code_of_malloc(target.pid) != before
            links = links_of(profiler.pid)
            assert links and links <= (all_links() or links)
            profiler.process.send_signal(signal.SIGKILL)
            profiler.process.wait()
        wait_until(lambda: code_of_malloc(target.pid) == before, what="the breakpoints to go")
        wait_until(lambda: not links & (all_links() or set()), what="the links to go")
        assert target.step() == "done"


def code_of_malloc(pid: int) -> bytes:
    """The first bytes of malloc in a process: a breakpoint shows there."""
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    start, offset, path = next(
        (int(f[0].split("-")[0], 16), int(f[2], 16), f[5]) for f in maps if len(f) > 5 and "/libc.so" in f[5] and "x" in f[1]
    )  # fmt: skip
    import unidle_scope

    at = next(found[0][2] for _, symbol, found in unidle_scope.probes_of(path) if symbol == "malloc")
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(start + at - offset)
        return memory.read(8)


def links_of(pid: int) -> set[int]:
    """The kernel's numbers of the links that a process holds."""
    infos = [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    lines = [line.split() for info in infos for line in info.splitlines()]
    return {int(line[1]) for line in lines if line[0] == "link_id:"}


def all_links() -> set[int] | None:
    """The kernel's links, of whoever holds them; nothing where there is no tool to ask."""
    if not shutil.which("bpftool"):
        return None
    told = subprocess.run(["bpftool", "-j", "link", "show"], capture_output=True, text=True, check=True)
    return {link["id"] for link in json.loads(told.stdout or "[]")}


@needs.ebpf
def test_a_switch_that_does_not_exist_and_a_process_that_is_not_there_are_named() -> None:
    import unidle_scope

    with pytest.raises(ValueError, match="operatros"):
        unidle_scope.Calls([os.getpid()], {"operatros": True})
    with pytest.raises(OSError, match="No such"):
        unidle_scope.Calls([2**22 + 5], {"only": True, "gc": True})


@needs.ebpf
def test_one_by_one_the_counts_are_the_same(tmp_path: Path) -> None:
    program = compiled(FORKS, tmp_path / "forks", head=C_HEAD)
    with started([program]) as target:
        target.line()
        with counting([target.pid], malloc=True, follow=False, multi=False) as calls:
            target.step()
            born = _children(target.pid)
            target.go()
            for pid in born:
                os.kill(pid, signal.SIGUSR1)
            target.line()
            assert counts(calls.take()) == {"malloc": 3}
