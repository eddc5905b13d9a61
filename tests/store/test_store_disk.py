"""Disks that are full or read-only, and files of other users."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import needs
from places import open_directory
from unidle.errors import StoreError
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
from unidle.store.tools import check


class Disk:
    """A small file system of its own."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self.store = at / "store.db"

    def mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.at], check=True)

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", self.at], check=True)

    def fill(self) -> None:
        with suppress(OSError), (self.at / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    disk.at.mkdir()
    disk.mount("size=1m")
    yield disk
    subprocess.run(["umount", disk.at], check=True)


def big(n: int) -> NewEvent:
    return NewEvent(n, "s", n, "k", b'{"fill":"%s"}' % (b"x" * 3000))


@needs.root
@pytest.mark.parametrize("batch", [1, 9])
def test_a_full_disk_is_told_and_nothing_acknowledged_is_lost(disk, batch):
    store = open_store(str(disk.store), create=True)
    lease = store.acquire("test")

    def append_for_ever() -> None:
        while True:
            last = store.last()[0]
            acknowledged.append(store.append(lease, [big(n) for n in range(last + 1, last + 1 + batch)]))

    acknowledged: list[int] = []
    with pytest.raises(StoreError, match=r"no space is left on the disk; free some"):
        append_for_ever()
    last = acknowledged[-1]
    assert store.last() == (last, last)
    assert len(list(store.read())) == last
    with closing(open_store(str(disk.store), create=False, read_only=True)) as reader:
        assert len(list(reader.read())) == last
    disk.remount("size=8m")
    assert store.append(lease, [big(last + 1)]) == last + 1  # it goes on where it stopped
    assert check(store).ok
    store.close()
    with closing(open_store(str(disk.store), create=False)) as again:
        assert len(list(again.read())) == last + 1


@needs.root
def test_a_store_on_a_full_disk_can_be_read_but_not_made_or_taken(disk):
    with closing(open_store(str(disk.store), create=True)) as store:
        store.append(store.acquire("test"), [big(1)])
    disk.fill()
    with closing(open_store(str(disk.store), create=False, read_only=True)) as store:
        assert len(list(store.read())) == 1
    with pytest.raises(StoreError, match="no space is left"):  # noqa: SIM117
        with closing(open_store(str(disk.store), create=False)) as store:
            store.append(store.acquire("test"), [big(n) for n in range(2, 50)])
    with pytest.raises(StoreError, match="no space is left"):
        open_store(str(disk.at / "new.db"), create=True)


@needs.root
def test_a_store_on_a_read_only_file_system_can_be_read(disk):
    with closing(open_store(str(disk.store), create=True)) as store:
        store.append(store.acquire("test"), [big(1)])
    disk.remount("ro")
    with closing(open_store(str(disk.store), create=False, read_only=True)) as store:
        assert [event.seq for event in store.read()] == [1]
        assert check(store).ok
    for name, create in [("store.db", False), ("store.db", True), ("new.db", True)]:
        with pytest.raises(StoreError, match="cannot be written; check the owner and mode"):
            open_store(str(disk.at / name), create=create)


CRASH = """
import os, sys
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
store = open_store(sys.argv[1], create=True)
store.append(store.acquire("test"), [NewEvent(1, "s", 1, "k", b"{}")])
os.kill(os.getpid(), 9)
"""


@needs.root
def test_what_a_killed_writer_left_can_be_read_on_a_read_only_file_system(disk):
    subprocess.run([sys.executable, "-c", CRASH, str(disk.store)], check=False)
    disk.remount("ro")
    with closing(open_store(str(disk.store), create=False, read_only=True)) as store:
        assert [event.seq for event in store.read()] == [1]
    disk.remount("rw")
    Path(f"{disk.store}-shm").unlink()
    disk.remount("ro")
    with pytest.raises(StoreError, match=r"changes in its write-ahead log .*copy both files"):
        open_store(str(disk.store), create=False, read_only=True)


def as_nobody(use: Callable[[], None]) -> str:
    """What ``use`` raises in a process of a user without any rights; "" when it goes well."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            use()
        except BaseException as error:
            # without source lines: the files of Python may be closed to this user
            frames = "".join(
                f"{at.f_code.co_filename}:{line}\n" for at, line in traceback.walk_tb(error.__traceback__)
            )
            os.write(tell, f"{frames}{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)  # never back into pytest
    os.close(tell)
    with os.fdopen(told, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@needs.root
@pytest.mark.parametrize("in_use", [False, True])
def test_another_user_can_read_a_store_that_only_its_owner_may_write(in_use):
    with open_directory() as directory:
        path = directory / "store.db"
        owner = open_store(str(path), create=True, mode=0o644)
        lease = owner.acquire("unidle up")
        owner.append(lease, [big(1), big(2)])
        if not in_use:
            owner.close()

        def read() -> None:
            with closing(open_store(str(path), create=False, read_only=True)) as store:
                assert [event.seq for event in store.read()] == [1, 2]
                assert bool(store.holder()) == in_use

        def write() -> None:
            open_store(str(path), create=False)

        assert as_nobody(read) == ""
        assert "the store cannot be written; check the owner and mode" in as_nobody(write)
        if in_use:
            owner.append(lease, [big(3)])
            owner.close()


@needs.root
def test_a_store_that_may_not_be_read_is_told():
    with open_directory() as directory:
        hidden = directory / "hidden"
        hidden.mkdir(mode=0o700)
        for path in (directory / "store.db", hidden / "store.db"):
            with closing(open_store(str(path), create=True)):
                path.chmod(0o600)
            for read_only in (True, False):
                text = as_nobody(lambda p=path, r=read_only: open_store(str(p), create=False, read_only=r))
                assert "StoreError" in text
                assert "check its owner" in text or "check the owner" in text


OPEN_AND_CLOSE = """
import sys
from unidle.store.open import open_store
open_store(sys.argv[1], create=False).close()
"""


def test_a_reader_in_the_same_process_takes_no_lock_away(tmp_path):
    """Closing a second connection of the process must not drop the first one's locks."""
    path = str(tmp_path / "store.db")
    store = open_store(path, create=True)
    lease = store.acquire("test")
    store.append(lease, [big(1)])
    for _ in range(3):
        open_store(path, create=False, read_only=True).close()
    done = subprocess.run([sys.executable, "-c", OPEN_AND_CLOSE, path], check=False)
    assert done.returncode == 0
    assert Path(f"{path}-wal").stat().st_size  # that process was not the last one
    store.append(lease, [big(2)])
    with closing(open_store(path, create=False, read_only=True)) as reader:
        assert len(list(reader.read())) == 2
    store.close()
