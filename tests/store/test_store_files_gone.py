"""Files of a store that are deleted, moved or replaced while it is open."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from unidle.errors import StoreGone, StoreHeld
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent


def event(n: int) -> NewEvent:
    return NewEvent(n, "s", n, "k", b"{}")


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_nothing_is_acknowledged_once_a_file_is_gone(tmp_path: Path, suffix: str, how: str) -> None:
    path = tmp_path / "s.db"
    store = open_store(str(path), create=True)
    lease = store.acquire("test")
    store.append(lease, [event(1)])
    file = Path(f"{path}{suffix}")
    if how == "deleted":
        file.unlink()
    elif how == "moved":
        file.rename(tmp_path / "elsewhere")
    else:
        shutil.copy(file, tmp_path / "copy")
        (tmp_path / "copy").replace(file)
    for use in (
        lambda: store.append(lease, [event(2)]),
        lambda: store.renew(lease),
        lambda: store.request("submit", b"{}"),
        store.requests,
    ):
        with pytest.raises(StoreGone, match=r"was .* while the store was in use; put the file back") as error:
            use()
        assert str(file) in str(error.value)
        assert ("replaced" in str(error.value)) == (how == "replaced")
        assert error.value.exit_code == 4
    store.close()


def test_a_store_that_is_only_reached_by_another_name_is_the_same(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s.db"), create=True)
    (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
    lease = store.acquire("test")
    with closing(open_store(str(tmp_path / "link.db"), create=False)) as other:
        store.append(lease, [event(1)])
        with pytest.raises(StoreHeld):
            other.acquire("other")
        assert store.append(lease, [event(2)]) == 2
    store.compact(lease)
    assert store.append(lease, [event(3)]) == 3
    store.close()


LIMITED = """
import resource, sys
from unidle.errors import StoreError
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
store = open_store(sys.argv[1], create=True)
lease = store.acquire("test")
resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, resource.RLIM_INFINITY))
try:
    for n in range(1, 1000):
        store.append(lease, [NewEvent(n, "s", n, "k", b'"%s"' % (b"x" * 3000))])
except StoreError as error:
    print(type(error).__name__, error.exit_code, error)
"""


def test_an_io_error_is_not_called_damage(tmp_path: Path) -> None:
    assert resource.RLIMIT_FSIZE  # a write past this limit fails, as one to a broken disk does
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "s.db")], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("StoreError 4 "), done
    assert "the disk reported an I/O error" in done.stdout
    assert "dmesg" in done.stdout
    assert "store check" not in done.stdout
