"""Bytes, blocks and what is live: exactly, by the place that allocated."""

from __future__ import annotations

from pathlib import Path

import needs
from scope_calls.targets import compiled, counting, counts, functions_of, held, python, started

HEAP = """
__attribute__((noinline)) void *small(void) { return malloc(100); }
__attribute__((noinline)) void *large(void) { return malloc(1000); }
int main(void) {
    static void *kept[64];
    void *q = 0, *r = 0;
    step();
    for (int i = 0; i < 50; i++) kept[i] = small();
    for (int i = 0; i < 40; i++) free(large());
    q = calloc(10, 20); q = realloc(q, 5000); q = realloc(q, 7000);
    if (posix_memalign(&r, 64, 4096)) return 1;
    if (realloc(q, (size_t)1 << 60)) return 1; /* refused: the old block stays */
    step();
    for (int i = 0; i < 20; i++) free(kept[i]);
    free(q); free(r); free(0);
    r = realloc(0, 33); realloc(r, 0);
    step();
    return 0;
}
"""


@needs.ebpf
def test_allocations_of_a_c_program_are_exact_with_frees_and_realloc(tmp_path: Path) -> None:
    program = compiled(HEAP, tmp_path / "heap")
    with started([program]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            first = calls.take()
            target.step()
            second = calls.take()
    assert counts(first) == {
        "malloc": 90, "free": 40, "calloc": 1, "realloc": 3, "posix_memalign": 1,
    }  # fmt: skip
    assert held(first) == (5000 + 40_000 + 200 + 5000 + 7000 + 4096, 94, 5000 + 7000 + 4096, 52)
    assert held(second) == (33, 1, 3000, 30)


@needs.ebpf
def test_each_place_has_its_own_bytes_and_its_stack(tmp_path: Path) -> None:
    program = compiled(HEAP, tmp_path / "heap")
    with started([program]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            taken = calls.take()
    places = {}
    for _, stack, _, allocated, count, live_bytes, live in taken["memory"]:
        names = functions_of(taken, stack)
        assert "main" in names
        places[names[names.index("main") + 1]] = (allocated, count, live_bytes, live)
    assert places["small"] == (5000, 50, 5000, 50)
    assert places["large"] == (40_000, 40, 0, 0)
    assert places["realloc"] == (12_000, 2, 7000, 1)


@needs.ebpf
def test_threads_that_free_each_others_blocks_leave_exact_sums(tmp_path: Path) -> None:
    program = compiled(
        """
        #include <pthread.h>
        static void *blocks[4][1000];
        static void *fill(void *n) { for (int i = 0; i < 1000; i++) blocks[(long)n][i] = malloc(10 + (long)n); return 0; }
        static void *drain(void *n) { for (int i = 0; i < 900; i++) free(blocks[3 - (long)n][i]); return 0; }
        static void run(void *(*what)(void *)) {
            pthread_t t[4];
            for (long n = 0; n < 4; n++) pthread_create(&t[n], 0, what, (void *)n);
            for (int n = 0; n < 4; n++) pthread_join(t[n], 0);
        }
        int main(void) { step(); run(fill); run(drain); step(); return 0; }
        """,
        tmp_path / "threads",
        "-pthread",
    )
    with started([program]) as target:
        target.line()
        with counting([target.pid], malloc=True) as calls:
            target.step()
            taken = calls.take()
    filled = [row for row in taken["memory"] if "fill" in functions_of(taken, row[1])]
    assert sum(row[4] for row in filled) == 4000
    assert sum(row[3] for row in filled) == 1000 * (10 + 11 + 12 + 13)
    assert (sum(row[6] for row in filled), sum(row[5] for row in filled)) == (400, 100 * (10 + 11 + 12 + 13))


TENSORS = """
import torch
torch.set_num_threads(1)
def first():
    return [torch.empty(1000 * (n + 1), dtype=torch.float32) for n in range(10)]
def second():
    return torch.empty(500, dtype=torch.float32)
first(), second()
step()
kept = first()
for _ in range(7):
    second()
step()
del kept[:5]
step()
"""


@needs.ebpf
def test_tensors_are_exact_and_known_by_their_python_line() -> None:
    with started(python(TENSORS)) as target:
        target.line()
        with counting([target.pid], memory=True) as calls:
            target.step()
            taken = calls.take()
            target.step()
            after = calls.take()
    assert counts(taken) == {"c10::alloc_cpu": 17, "c10::free_cpu": 7}
    assert held(taken) == (220_000 + 14_000, 17, 220_000, 10)
    assert held(after) == (0, 0, 160_000, 5)
    by_function = {}
    for _, stack, _, allocated, count, _, live in taken["memory"]:
        python_names = [
            taken["frames"][n][1] for n in taken["stacks"][stack] if taken["frames"][n][0] == "python"
        ]
        by_function[next(name for name in ("first", "second") if name in python_names)] = (allocated, count, live)
    assert by_function == {"first": (220_000, 10, 10), "second": (14_000, 7, 0)}


@needs.ebpf
def test_an_allocation_that_raises_leaves_the_process_and_the_sums_alone() -> None:
    source = """
    import torch
    torch.set_num_threads(1)
    step()
    for _ in range(3):
        try:
            torch.empty(1 << 50)
        except RuntimeError:
            pass
    kept = [torch.empty(250, dtype=torch.float32) for _ in range(4)]
    step()
    """
    with started(python(source)) as target:
        target.line()
        with counting([target.pid], memory=True, malloc=True) as calls:
            target.step()
            taken = calls.take()
    assert counts(taken)["c10::alloc_cpu"] == 7
    tensors = [row for row in taken["memory"] if "c10::alloc_cpu" in str(functions_of(taken, row[1]))]
    assert sum(row[4] for row in tensors if row[3] == 1000 * row[4]) == 4
    assert sum(row[5] for row in tensors if row[3] == 1000 * row[4]) == 4000
