"""CUDA and NCCL without a GPU: every probe finds its place in the real libraries, and a stub is counted exactly."""

from __future__ import annotations

import subprocess
from pathlib import Path
from sysconfig import get_paths

import pytest

import needs
from scope_calls.targets import C_HEAD, compiled, counting, counts, held, n_bytes, started

SITE = Path(get_paths()["platlib"])
# Names that only other releases have.
ELSEWHERE = {"ncclAllToAll", "ncclAlltoAll", "ncclGather", "ncclScatter"}

CUDART = """
#include <stdlib.h>
#include <unistd.h>
int cudaMalloc(void **p, size_t n) { *p = malloc(n); return *p ? 0 : 2; }
int cudaMallocHost(void **p, size_t n) { *p = malloc(n); return 0; }
int cudaMallocManaged(void **p, size_t n, unsigned f) { return 2; }
int cudaFree(void *p) { free(p); return 0; }
int cudaFreeHost(void *p) { free(p); return 0; }
int cudaSetDevice(int n) { return 0; }
int cudaLaunchKernel(void *f) { return 0; }
int cudaMemcpy(void *to, void *from, size_t n, int kind) { return 0; }
int cudaMemcpyAsync(void *to, void *from, size_t n, int kind, void *stream) { return 0; }
int cudaMemcpy2D(void *to, size_t a, void *from, size_t b, size_t w, size_t h, int kind) { return 0; }
int cudaStreamSynchronize(void *s) { usleep(2000); return 0; }
"""
NCCL = """
#include <stddef.h>
int ncclAllReduce(void *a, void *b, size_t n, int type, int op, void *comm, void *s) { return 0; }
int ncclSend(void *a, size_t n, int type, int peer, void *comm, void *s) { return 0; }
"""
USER = """
int cudaMalloc(void **, size_t), cudaMallocHost(void **, size_t), cudaMallocManaged(void **, size_t, unsigned);
int cudaFree(void *), cudaFreeHost(void *), cudaSetDevice(int), cudaLaunchKernel(void *), cudaStreamSynchronize(void *);
int cudaMemcpy(void *, void *, size_t, int), cudaMemcpyAsync(void *, void *, size_t, int, void *);
int cudaMemcpy2D(void *, size_t, void *, size_t, size_t, size_t, int);
int ncclAllReduce(void *, void *, size_t, int, int, void *, void *), ncclSend(void *, size_t, int, int, void *, void *);
int main(void) {
    void *p, *q[8];
    step();
    cudaMalloc(&p, 111);
    cudaSetDevice(1);
    for (int i = 0; i < 8; i++) cudaMalloc(&q[i], 1 << 20);
    for (int i = 0; i < 5; i++) cudaFree(q[i]);
    cudaMallocManaged(&p, 5000, 1);
    cudaMallocHost(&p, 4096);
    cudaFreeHost(p);
    for (int i = 0; i < 6400; i++) cudaLaunchKernel(0);
    for (int i = 0; i < 10; i++) cudaMemcpy(0, 0, 1000, 1);
    for (int i = 0; i < 20; i++) cudaMemcpyAsync(0, 0, 2000, 2, 0);
    cudaMemcpy2D(0, 0, 0, 0, 30, 40, 1);
    for (int i = 0; i < 3; i++) cudaStreamSynchronize(0);
    for (int i = 0; i < 4; i++) ncclAllReduce(0, 0, 1000, 7, 0, 0, 0);
    ncclAllReduce(0, 0, 1000, 9, 0, 0, 0);
    ncclSend(0, 10, 8, 0, 0, 0);
    step();
    return 0;
}
"""


def library(pattern: str) -> Path:
    return next(iter(sorted(SITE.glob(pattern))), Path(pattern))


@pytest.mark.parametrize(
    "pattern, groups",
    [
        ("nvidia/**/lib/libcudart.so.*", {"cuda", "cuda memory"}),
        ("nvidia/**/lib/libnccl.so.*", {"nccl"}),
        ("torch/lib/libc10_cuda.so", {"caching allocator"}),
    ],
)
def test_every_probe_finds_its_symbol_and_place_in_the_real_library(pattern: str, groups: set[str]) -> None:
    scope = pytest.importorskip("unidle_scope")
    path = library(pattern)
    if not path.exists():
        pytest.skip(f"GPU: PyTorch came without {path.name}")
    rows = [row for row in scope.probes_of(path) if row[0] in groups]
    assert {group for group, _, _ in rows} == groups
    assert {symbol for _, symbol, found in rows if not found} <= ELSEWHERE
    known = addresses(path)
    for group, _, found in rows:
        for symbol, _, offset, _, exit_ in found:
            assert offset == known[symbol], symbol
            assert exit_ != "unseen" or group in ("cuda", "caching allocator"), symbol
    # What takes time is timed without a return probe, so that stacks stay whole while it lasts.
    waits = [found for _, symbol, found in rows if symbol.endswith("Synchronize")]
    assert all(exit_.endswith("places") for found in waits for *_, exit_ in found)


def addresses(path: Path) -> dict[str, int]:
    """Offsets of functions in a file, as the binary utilities see them."""
    segments = []
    for line in run("readelf", "-lW", path).splitlines():
        fields = line.split()
        if fields[:1] == ["LOAD"]:
            segments.append(tuple(int(f, 16) for f in (fields[2], fields[1], fields[4])))
    out = {}
    for line in (run("nm", "-D", path) + run("nm", path)).splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in "tTwW":
            at = int(fields[0], 16)
            for start, offset, size in segments:
                if start <= at < start + size:
                    out[fields[2].split("@")[0]] = at - start + offset
    return out


def run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def user(tmp_path: Path) -> Path:
    compiled(CUDART, tmp_path / "libcudart.so.13", "-shared", "-fPIC", head="")
    compiled(NCCL, tmp_path / "libnccl.so.2", "-shared", "-fPIC", head="")
    return compiled(
        USER, tmp_path / "user", f"-Wl,-rpath,{tmp_path}", tmp_path / "libcudart.so.13", tmp_path / "libnccl.so.2",
        head=C_HEAD,
    )  # fmt: skip


@needs.ebpf
def test_calls_copies_and_waits_of_a_stub_are_exact(user: Path) -> None:
    with started([user]) as target:
        target.line()
        with counting([target.pid], cuda=True, collectives=True) as calls:
            target.step()
            taken = calls.take()
    assert counts(taken) == {
        "cudaSetDevice": 1, "cudaLaunchKernel": 6400, "cudaMemcpy": 10, "cudaMemcpyAsync": 20, "cudaMemcpy2D": 1,
        "cudaStreamSynchronize": 3, "ncclAllReduce": 5, "ncclSend": 1,
    }  # fmt: skip
    assert n_bytes(taken, "cudaMemcpy") == 10_000
    assert n_bytes(taken, "cudaMemcpyAsync") == 40_000
    assert n_bytes(taken, "cudaMemcpy2D") == 1200
    assert n_bytes(taken, "ncclAllReduce") == 4 * 4000 + 2000
    assert n_bytes(taken, "ncclSend") == 80
    kinds = {row[2]: row[3] for row in taken["calls"]}
    assert kinds["cudaMemcpy"] == "copy" and kinds["cudaStreamSynchronize"] == "sync"
    assert kinds["ncclAllReduce"] == "collective" and kinds["cudaLaunchKernel"] == "launch"
    waits = [row for row in taken["spans"] if row[3] == "sync"]
    assert len(waits) == 3 and all(row[5] - row[4] >= 2_000_000 for row in waits)
    (waited,) = [row[5] for row in taken["calls"] if row[2] == "cudaStreamSynchronize"]
    assert waited == sum(row[5] - row[4] for row in waits)
    assert len([row for row in taken["spans"] if row[3] == "copy"]) == 31


@needs.ebpf
def test_device_memory_is_known_by_device_and_not_twice_by_what_it_calls(user: Path) -> None:
    with started([user]) as target:
        target.line()
        with counting([target.pid], cuda=True, memory=True, malloc=True) as calls:
            target.step()
            taken = calls.take()
    assert held(taken, "cuda:?") == (111, 1, 111, 1)
    assert held(taken, "cuda:1") == (8 << 20, 8, 3 << 20, 3)
    assert held(taken, "host") == (4096, 1, 0, 0)
