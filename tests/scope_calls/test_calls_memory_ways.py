"""Every way to get memory and to give it back, also those that begin before the look or end after the program."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import needs
from scope_calls.targets import compiled, counting, counts, functions_of, held, python, started
from waiting import wait_until

WAIT_S = 60


def of(taken: dict[str, Any], function: str, device: str = "host") -> tuple[int, int, int, int]:
    """Sums over the stacks that this function is in."""
    rows = [row for row in taken["memory"] if function in functions_of(taken, row[1])]
    return held({"memory": rows}, device)


WAYS = """
#include <malloc.h>
#include <sys/mman.h>
#define WAY __attribute__((noinline)) void *
WAY aligned(void) { return aligned_alloc(64, 640); }
WAY memaligned(void) { return memalign(128, 1280); }
WAY zeroed(void) { return calloc(1000, 1000); } /* a mapping of its own */
WAY grown(void *p) { return realloc(p, 9000000); } /* that is moved */
WAY refused(void) { return malloc((size_t)1 << 62); }
WAY overflowing(void) { return calloc((size_t)1 << 40, (size_t)1 << 40); }
WAY empty(void) { return malloc(0); }
int main(void) {
    void *before[50], *p[10];
    for (int i = 0; i < 50; i++) before[i] = malloc(5000);
    step();
    for (int i = 0; i < 25; i++) free(before[i]);
    for (int i = 25; i < 30; i++) before[i] = realloc(before[i], 6000);
    p[0] = aligned(); p[1] = memaligned(); p[2] = zeroed(); p[3] = empty();
    if (refused() || overflowing()) return 1;
    step();
    p[2] = grown(p[2]);
    step();
    for (int i = 0; i < 4; i++) free(p[i]);
    for (int i = 25; i < 50; i++) free(before[i]);
    step();
    return 0;
}
"""


@needs.ebpf
def test_blocks_of_before_the_look_are_never_counted_as_less_than_nothing(tmp_path: Path) -> None:
    with started([compiled(WAYS, tmp_path / "ways")]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            first = calls.take()
            target.step()
            second = calls.take()
            target.step()
            last = calls.take()
    moved = 5 * 6000
    assert held(first) == (640 + 1280 + 1_000_000 + moved, 9, 640 + 1280 + 1_000_000 + moved, 9)
    assert of(first, "aligned") == (640, 1, 640, 1)
    assert of(first, "memaligned") == (1280, 1, 1280, 1)
    assert of(first, "zeroed") == (1_000_000, 1, 1_000_000, 1)
    assert of(first, "empty") == (0, 1, 0, 1)
    assert of(first, "refused") == of(first, "overflowing") == (0, 0, 0, 0)
    assert of(second, "grown") == (9_000_000, 1, 9_000_000, 1)
    assert of(second, "zeroed")[2:] == (0, 0)
    assert held(last) == (0, 0, 0, 0)
    assert all(min(row[3:7]) >= 0 for taken in (first, second, last) for row in taken["memory"])


PAGES = """
#include <sys/mman.h>
#define WAY __attribute__((noinline)) void *
WAY arena(size_t n) { return mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
WAY moved(void *p) { return mremap(p, 1 << 20, 8 << 20, MREMAP_MAYMOVE); }
WAY reserved(void) { return mmap(0, 1 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
WAY refused(void) { return mmap(0, (size_t)1 << 60, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
WAY heap(long n) { return sbrk(n); }
WAY through_malloc(size_t n) { return malloc(n); }
int main(void) {
    char name[] = "/proc/self/exe";
    int fd = open(name, 0);
    void *a, *b;
    free(malloc(1)); /* from here on the end of the heap is the program's */
    step();
    a = arena(1 << 20); b = arena(3 << 20);
    reserved();
    if (refused() != MAP_FAILED) return 1;
    mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0); /* a file's */
    for (int i = 0; i < 4; i++) heap(65536);
    heap(0);
    void *large = through_malloc(50 << 20);
    step();
    munmap(b, 3 << 20);
    a = moved(a);
    heap(-65536 * 2);
    free(large);
    step();
    munmap(a, 8 << 20);
    heap(-65536 * 2);
    step();
    return 0;
}
"""


@needs.ebpf
def test_pages_are_exact_and_what_malloc_takes_is_not_told_twice(tmp_path: Path) -> None:
    program = compiled(
        "#define _GNU_SOURCE\n#include <fcntl.h>\n" + PAGES, tmp_path / "pages", "-D_GNU_SOURCE"
    )
    with started([program]) as target:
        target.line()
        with counting([target.pid], pages=True, malloc=True) as calls:
            target.step()
            first = calls.take()
            target.step()
            second = calls.take()
            target.step()
            last = calls.take()
    mb = 1 << 20
    assert of(first, "arena", "pages") == (4 * mb, 2, 4 * mb, 2)
    assert of(first, "heap", "pages") == (4 * 65536, 4, 4 * 65536, 4)
    assert of(first, "through_malloc") == (50 * mb, 1, 50 * mb, 1)
    assert held(first, "pages") == (4 * mb + 4 * 65536, 6, 4 * mb + 4 * 65536, 6)
    assert of(second, "arena", "pages")[2:] == (0, 0)
    assert of(second, "moved", "pages") == (8 * mb, 1, 8 * mb, 1)
    assert of(second, "heap", "pages")[2:] == (2 * 65536, 2)
    assert held(second)[2:] == (0, 0)
    assert held(last, "pages") == (0, 0, 0, 0)


@needs.ebpf
def test_where_malloc_is_not_followed_its_pages_are(tmp_path: Path) -> None:
    source = """
    __attribute__((noinline)) void *large(void) { return malloc(50 << 20); }
    int main(void) { free(malloc(1)); step(); void *p = large(); step(); free(p); step(); return 0; }
    """
    with started([compiled(source, tmp_path / "large")]) as target:
        target.line()
        with counting([target.pid], pages=True) as calls:
            target.step()
            taken = calls.take()
            target.step()
            after = calls.take()
    (n_bytes, count, live, blocks) = of(taken, "large", "pages")
    assert (count, blocks) == (1, 1)
    assert n_bytes == live
    assert 0 <= n_bytes - (50 << 20) <= 8192  # the allocator's own head, and whole pages
    assert held(after, "pages") == (0, 0, 0, 0)


@needs.ebpf
def test_children_begin_with_nothing_and_what_they_free_of_their_parent_stays_the_parents(
    tmp_path: Path,
) -> None:
    source = """
    #include <signal.h>
    #include <sys/wait.h>
    int main(void) {
        static void *kept[100];
        int child, got;
        sigset_t usr1;
        sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
        sigprocmask(SIG_BLOCK, &usr1, 0); /* one that comes before the child waits for it is not lost */
        step();
        for (int i = 0; i < 100; i++) kept[i] = malloc(700);
        if ((child = fork()) == 0) {
            write(1, "born\\n", 5); sigwait(&usr1, &got);
            for (int i = 0; i < 60; i++) free(kept[i]);
            for (int i = 0; i < 9; i++) kept[i] = malloc(300);
            write(1, "grew\\n", 5); sigwait(&usr1, &got);
        }
        waitpid(child, 0, 0);
        step();
        return 0;
    }
    """
    with started([compiled(source, tmp_path / "forks")]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            assert target.step() == "born"
            (child,) = Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()
            wait_until(lambda: calls.run(0.05) == 2, WAIT_S)
            os.kill(int(child), signal.SIGUSR1)
            assert target.line() == "grew"
            taken = calls.take()
            os.kill(int(child), signal.SIGKILL)
            target.line()
            wait_until(lambda: calls.run(0.05) == 1, WAIT_S)
            after = calls.take()
            gone = calls.take()
    own = [row[3:7] for row in taken["memory"] if row[0] == target.pid]
    forked = [row[3:7] for row in taken["memory"] if row[0] == int(child)]
    assert own == [(70_000, 100, 70_000, 100)]
    assert forked == [(2700, 9, 2700, 9)]
    assert [row[6] for row in after["memory"] if row[0] == target.pid] == [100]
    assert not [row for row in gone["memory"] if row[0] == int(child)]


@needs.ebpf
def test_a_program_that_becomes_another_one_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    second = compiled(
        "int main(void) { step(); static void *p; p = malloc(4321); step(); return 0; }", tmp_path / "second"
    )
    first = compiled(
        f"""
        int main(void) {{
            static void *kept[300];
            step();
            for (int i = 0; i < 300; i++) kept[i] = malloc(1234);
            step();
            execl("{second}", "second", (char *)0);
            return 1;
        }}
        """,
        tmp_path / "first",
    )
    with started([first]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            before = calls.take()
            target.step()
            calls.run(0.3)  # by then it is seen that it is another one
            target.step()
            after = calls.take()
    assert held(before)[3] == 300
    assert (4321, 1, 4321, 1) in [tuple(row[3:7]) for row in after["memory"]]
    assert not [row for row in after["memory"] if row[6] >= 300]


@needs.ebpf
def test_what_threads_that_ended_allocated_is_still_told(tmp_path: Path) -> None:
    source = """
    #include <pthread.h>
    static void *kept[200];
    __attribute__((noinline)) void *work(void *n) { kept[(long)n] = malloc(555); return 0; }
    int main(void) {
        step();
        for (long n = 0; n < 200; n++) { pthread_t t; pthread_create(&t, 0, work, (void *)n); pthread_join(t, 0); }
        step();
        for (int n = 0; n < 200; n++) free(kept[n]);
        step();
        return 0;
    }
    """
    with started([compiled(source, tmp_path / "ended", "-pthread")]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            taken = calls.take()
            target.step()
            after = calls.take()
    assert of(taken, "work") == (200 * 555, 200, 200 * 555, 200)
    assert of(after, "work") == (0, 0, 0, 0)


ALLOCATOR = """
#include <errno.h>
#include <stddef.h>
#include <string.h>
static char pool[64 << 20];
static size_t used;
void *posix_place(size_t a, size_t n) {
    size_t at = (__atomic_fetch_add(&used, n + a + 16, __ATOMIC_SEQ_CST) + 16 + a - 1) & ~(a - 1);
    if (at + n > sizeof(pool)) return 0;
    *(size_t *)(pool + at - 16) = n;
    return pool + at;
}
void *malloc(size_t n) { return posix_place(16, n); }
void free(void *p) { (void)p; }
void *calloc(size_t a, size_t b) { return posix_place(16, a * b); }
void *realloc(void *p, size_t n) {
    void *q = posix_place(16, n);
    if (p && q) { size_t old = *(size_t *)((char *)p - 16); memcpy(q, p, old < n ? old : n); }
    return q;
}
int posix_memalign(void **p, size_t a, size_t n) { *p = posix_place(a < 16 ? 16 : a, n); return *p ? 0 : ENOMEM; }
void *aligned_alloc(size_t a, size_t n) { return posix_place(a < 16 ? 16 : a, n); }
void *memalign(size_t a, size_t n) { return posix_place(a < 16 ? 16 : a, n); }
size_t malloc_usable_size(void *p) { return p ? *(size_t *)((char *)p - 16) : 0; }
"""


@needs.ebpf
def test_a_preloaded_allocator_is_followed_by_its_name(tmp_path: Path) -> None:
    library = compiled(ALLOCATOR, tmp_path / "libjemalloc.so.2", "-shared", "-fPIC", head="")
    program = compiled(
        """
        __attribute__((noinline)) void *work(void) { return malloc(321); }
        int main(void) { step(); void *p[30]; for (int i = 0; i < 30; i++) p[i] = work();
                         for (int i = 0; i < 10; i++) free(p[i]); step(); return 0; }
        """,
        tmp_path / "preloaded",
    )
    with started([program], env={**os.environ, "LD_PRELOAD": str(library)}) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            taken = calls.take()
    assert of(taken, "work") == (30 * 321, 30, 20 * 321, 20)


@needs.ebpf
def test_an_allocator_inside_the_program_is_followed(tmp_path: Path) -> None:
    source = """
    __attribute__((noinline)) void *work(void) { return malloc(99); }
    int main(void) { step(); for (int i = 0; i < 7; i++) work(); step(); return 0; }
    """
    program = compiled(ALLOCATOR + source, tmp_path / "own")
    with started([program]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            taken = calls.take()
    assert of(taken, "work") == (7 * 99, 7, 7 * 99, 7)


@needs.ebpf
@pytest.mark.slow
def test_where_malloc_costs_too_much_its_numbers_are_cut_and_later_tensors_still_count(
    tmp_path: Path,
) -> None:
    source = """
    import torch
    torch.set_num_threads(1)
    step()
    step()
    kept = [torch.empty(500, dtype=torch.float32) for _ in range(6)]
    step()
    """
    busy = """
    import threading
    def churn():
        while True:
            bytearray(3000)
    threading.Thread(target=churn, daemon=True).start()
    """
    lines = source.strip("\n").split("\n")
    lines.insert(3, busy.strip("\n"))
    with started(python("\n".join(lines))) as target:
        target.line()
        with counting([target.pid], memory=True, malloc=True, memory_budget_pct=10.0) as calls:
            target.step()
            deadline = 100
            taken = calls.take()
            while not taken["cuts"] and deadline:
                calls.run(0.1)
                taken = calls.take()
                deadline -= 1
            target.step()
            after = calls.take()
    assert [what for what, _ in taken["cuts"]] == ["malloc"]
    assert any("malloc: probes taken off" in note for note in taken["notes"])
    assert counts(after)["c10::alloc_cpu"] == 6
    tensors = [row for row in after["memory"] if "c10::alloc_cpu" in str(functions_of(after, row[1]))]
    assert sum(row[6] for row in tensors if row[3] == 2000 * row[4] and row[4]) == 6


@needs.ebpf
def test_growth_is_told_by_moments_and_what_fills_once_stays_flat(tmp_path: Path) -> None:
    source = """
    __attribute__((noinline)) void *leak(void) { return malloc(1000); }
    __attribute__((noinline)) void *fill(void) { return malloc(2000); }
    int main(void) {
        step();
        for (int i = 0; i < 50; i++) fill();
        for (int round = 0; round < 4; round++) { for (int i = 0; i < 10; i++) leak(); step(); }
        return 0;
    }
    """
    with started([compiled(source, tmp_path / "grows")]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            for _ in range(4):
                target.step()
                calls.run(0.4)  # a moment comes every quarter of a second
            taken = calls.take()

    def series(function: str) -> list[tuple[int, int]]:
        rows = [row for row in taken["moments"] if function in functions_of(taken, row[1])]
        return [(row[4], row[5]) for row in sorted(rows, key=lambda row: row[3])]

    assert series("leak") == [(10_000, 10), (20_000, 20), (30_000, 30), (40_000, 40)]
    assert series("fill") == [(100_000, 50)]
