"""Directories that are well, full, read-only, gone, slow or wrong: real ones."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import needs
from unidle.probe.check import Absent, Check, Context, Outcome, ProbeResult, shipped
from unidle.probe.check import storage as room
from unidle.probe.check.storage import full, quick, write_and_read
from unidle.probe.check.thresholds import ModelThresholds


def checks(outcome: Outcome) -> dict[str, Check]:
    """By the name without the directory."""
    assert isinstance(outcome, ProbeResult)
    return {check.name.partition("[")[0]: check for check in outcome.checks}


def context(directory: Path, **limits: float) -> Context:
    return Context(book=ModelThresholds(limits).over(shipped()), directories=(directory,))


@contextmanager
def tmpfs(place: Path, *options: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_healthy_directory_passes_and_nothing_is_left_in_it(tmp_path: Path):
    found = checks(quick(context(tmp_path)))
    assert {check.ok for check in found.values()} == {True}
    assert set(found) == {"storage.free", "storage.inodes", "storage.same", "storage.fsync"}
    found = checks(full(context(tmp_path, storage_test_bytes=16 << 20, write_mb_per_s=0, read_mb_per_s=0)))
    assert {check.ok for check in found.values()} == {True}
    assert found["storage.correct"].value == 16 << 20
    assert list(tmp_path.iterdir()) == []


def test_no_directory_is_nothing_to_look_at():
    assert isinstance(quick(Context()), Absent)


def test_a_directory_that_is_not_there_or_is_a_file_fails(tmp_path: Path):
    (tmp_path / "file").touch()
    assert checks(quick(context(tmp_path / "none")))["storage"].because == "there is no such directory"
    assert checks(quick(context(tmp_path / "file")))["storage"].because == "it is no directory"


def test_one_bad_directory_does_not_hide_the_others(tmp_path: Path):
    outcome = quick(Context(book=shipped(), directories=(tmp_path / "none", tmp_path)))
    assert isinstance(outcome, ProbeResult)
    assert [check.ok for check in outcome.checks] == [False, True, True, True, True]
    assert outcome.checks[0].name == f"storage[{tmp_path / 'none'}]"


@needs.root
def test_a_full_file_system_fails(tmp_path: Path):
    with tmpfs(tmp_path / "full", "size=1m") as place:
        (place / "ballast").write_bytes(bytes(1 << 20))
        found = checks(quick(context(place)))
        assert found["storage"].because == "it is full" and found["storage"].ok is False
        (place / "ballast").unlink()
        found = checks(quick(context(place)))
        assert found["storage.free"].ok is False and found["storage.same"].ok is True
        assert checks(full(context(place)))["storage.write"].ok is None  # no room to measure it


@needs.root
def test_a_file_system_without_inodes_fails(tmp_path: Path):
    with tmpfs(tmp_path / "few", "size=64m,nr_inodes=3") as place:
        for name in "ab":
            (place / name).touch()
        assert checks(quick(context(place, free_bytes=0)))["storage.inodes"].ok is False


@needs.root
def test_a_read_only_file_system_fails(tmp_path: Path):
    with tmpfs(tmp_path / "ro", "size=8m,ro") as place:
        found = checks(quick(context(place, free_bytes=0)))
        assert found["storage"].ok is False and found["storage"].because == "it is read-only"


def test_what_is_not_read_back_as_it_was_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk that turns one bit over: the bytes in the file are changed between writing and reading."""
    genuine = room._read_back

    def turned(fd: int, block, size: int, digest: bytes):
        with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as file:
            file.seek(5_000_000)
            byte = file.read(1)[0]
            file.seek(5_000_000)
            file.write(bytes([byte ^ 4]))
            os.fsync(file.fileno())
        return genuine(fd, block, size, digest)

    monkeypatch.setattr(room, "_read_back", turned)
    found = checks(full(context(tmp_path, storage_test_bytes=8 << 20)))
    assert found["storage.correct"].ok is False


def test_a_slow_directory_fails_by_its_rate_or_by_its_fsync(tmp_path: Path):
    found = checks(full(context(tmp_path, storage_test_bytes=4 << 20, write_mb_per_s=1e9, read_mb_per_s=1e9)))
    assert found["storage.write"].ok is False and found["storage.read"].ok is False
    assert found["storage.correct"].ok is True
    assert checks(quick(context(tmp_path, fsync_ms=0)))["storage.fsync"].ok is False


def _blkio() -> Path | None:
    return next((r for r in needs.cgroup_roots() if r.name == "blkio"), None)


@needs.cgroups
def test_a_disk_that_the_kernel_slows_down_is_seen_to_be_slow(tmp_path: Path):
    """The control group's limit on reads stands for a sick disk; rates are as the kernel enforces them."""
    root = _blkio()
    v2 = next((r for r in needs.cgroup_roots() if "io" in (r / "cgroup.controllers").read_text().split()), None) if root is None else None  # fmt: skip
    assert root or v2, "no hierarchy has an I/O controller"
    group = (root or v2) / f"unidle-check-io-{os.getpid()}"  # type: ignore[operator]
    device = tmp_path.stat().st_dev
    disk = f"{os.major(device)}:{os.minor(device)}"
    group.mkdir()
    try:
        if root:
            (group / "blkio.throttle.write_bps_device").write_text(f"{disk} {8 << 20}")
        else:
            (group / "io.max").write_text(f"{disk} wbps={8 << 20}")
        code = (
            f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
            "from unidle.probe.check.storage import _scratch, write_and_read\n"
            "from pathlib import Path\n"
            f"with _scratch(Path({str(tmp_path)!r})) as fd:\n"
            "    done = write_and_read(fd, 16 << 20)\n"
            "print(done.direct, done.size / done.write_s / 1e6)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
        direct, rate = done.stdout.split()
        assert direct == "True" and float(rate) < 12  # MB/s; the limit is 8.4
    finally:
        group.rmdir()


def test_blocks_differ_so_that_a_block_in_the_wrong_place_shows(tmp_path: Path):
    with room._scratch(tmp_path) as fd:
        done = write_and_read(fd, 8 << 20)
        assert done.same
        with mmap.mmap(-1, 4096) as page:  # aligned: the file is open past the page cache
            heads = [bytes(page[:8]) for at in (0, 4 << 20) if os.preadv(fd, [page], at) == 4096]
        assert len(set(heads)) == 2
