"""pprof's files, opened by Go's own pprof."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scope_export import profiles, readers
from scope_export.protobuf import fields
from unidle.scope.export import names, pprof
from unidle.scope.model import Profile


def pprof_says(path: Path, *options: str) -> str:
    environment = os.environ | {"GOTOOLCHAIN": "local", "PPROF_TMPDIR": str(path.parent)}
    ran = subprocess.run(
        [readers.go(), "tool", "pprof", *options, str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=path.parent,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.pb.gz"
    path.write_bytes(pprof.write(profiles.small()))
    return path


@pytest.mark.slow
def test_gos_pprof_finds_the_same_times(small: Path) -> None:
    top = pprof_says(small, "-top", "-unit=ms", "-nodecount=50")
    rows = {
        m[5]: (m[1], m[3])
        for m in re.finditer(r"^ *(\S+) +(\S+%) +\S+% +(\S+) +(\S+%)  (.+)$", top, re.MULTILINE)
    }
    assert rows["mkl_blas_avx512_sgemm_kernel"][0] == "8000ms"
    assert rows["train_step"] == rows["<module>"] == ("0", "10000ms")
    assert "at::_ops::addmm::call(at::Tensor const&, at::Tensor const&)" in rows
    off = pprof_says(small, "-top", "-sample_index=off-cpu", "-unit=ms")
    assert re.search(r"7000ms\s+\S+\s+\S+\s+7000ms\s+\S+\s+\[futex\]", off)
    waiting = pprof_says(small, "-top", "-sample_index=cpu-wait", "-unit=ms")
    assert "500ms" in waiting


def test_gos_pprof_finds_labels_lines_modules_and_the_quality(small: Path) -> None:
    raw = pprof_says(small, "-raw")
    for fact in names.quality(profiles.small()).items():
        assert "Comment: {}: {}".format(*fact) in raw
    assert "rank:[rank 1]" in raw
    assert "thread:[pt_autograd_0 (tid 101)]" in raw
    assert "state:[waiting for a CPU]" in raw
    assert "train_step /app/train.py:43" in raw
    assert "libtorch_cpu.so" in raw
    assert "Period: 10101010" in raw
    focused = pprof_says(small, "-top", "-unit=ms", "-tagfocus=rank=rank 1", "-sample_index=off-cpu")
    assert re.search(r"5500ms\s+\S+\s+\S+\s+5500ms\s+\S+\s+\[futex\]", focused)


def test_gos_pprof_finds_memory(small: Path) -> None:
    assert "6000000B" in pprof_says(small, "-top", "-sample_index=inuse_space", "-unit=b").replace(".00", "")
    assert re.search(r"18000000B\b", pprof_says(small, "-top", "-sample_index=alloc_space", "-unit=b"))


@pytest.mark.parametrize(
    "make", [profiles.hostile, profiles.empty, profiles.single, profiles.deep], ids=lambda make: make.__name__
)
def test_gos_pprof_reads_the_edges(make: Callable[[], Profile], tmp_path: Path) -> None:
    path = tmp_path / "edge.pb.gz"
    path.write_bytes(pprof.write(make()))
    raw = pprof_says(path, "-raw")
    assert raw.count("state:[") == len(names.totals(make()))


def test_memory_columns_are_there_only_where_memory_was_looked_at() -> None:
    assert len(fields(pprof.plain(profiles.small()))[1]) == 8
    assert len(fields(pprof.plain(profiles.single()))[1]) == 4
