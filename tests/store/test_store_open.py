"""Addresses of stores, and what opening one costs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from unidle.errors import BadInput, StoreError
from unidle.store.open import open_store


def test_a_path_and_a_url_name_the_same_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(open_store("a b?#%.db", create=True)) as store:
        lease = store.acquire("test")
        url = store.url
    assert url == f"sqlite:///{tmp_path}/a b?#%.db"
    for address in (url, "sqlite:///a b?#%.db", str(tmp_path / "a b?#%.db")):
        with closing(open_store(address, create=False)) as store:
            assert store.acquire("test").token > lease.token
            assert store.url == url
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b?#%.db"]


def test_a_link_leads_to_the_store_and_its_log(tmp_path, event):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to("real/store.db")
    with closing(open_store(str(link), create=True)) as store:
        store.append(store.acquire("test"), [event(1)])
        with closing(open_store(str(tmp_path / "real" / "store.db"), create=False, read_only=True)) as other:
            assert len(list(other.read())) == 1
            assert other.holder()


def test_a_missing_store_is_made_only_when_asked_for(tmp_path):
    path = tmp_path / "store.db"
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"store.db: there is no store; check the address"):
            open_store(str(path), create=False, read_only=read_only)
    with pytest.raises(StoreError, match="there is no store"):
        open_store(str(path), create=True, read_only=True)
    assert not path.exists()
    open_store(str(path), create=True).close()
    open_store(str(path), create=False).close()


def test_an_empty_file_becomes_a_store_only_when_asked_for(tmp_path):
    path = tmp_path / "store.db"
    path.touch()
    with pytest.raises(StoreError, match="there is no store"):
        open_store(str(path), create=False)
    assert path.stat().st_size == 0
    open_store(str(path), create=True).close()


@pytest.mark.parametrize("name", ["", "."])
def test_a_directory_is_not_a_store(tmp_path, name):
    with pytest.raises(StoreError, match="is a directory; name a file"):
        open_store(str(tmp_path / name), create=True)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"its directory does not exist; mkdir -p .*/no$"):
        open_store(str(tmp_path / "no" / "store.db"), create=True)


@pytest.mark.parametrize(
    "address",
    ["", "  ", "a\0b", "sqlite://", "sqlite:///", "sqlite://store.db", "mysql://u:hush@host/db", "http://x"],
)
def test_an_address_of_another_kind_is_refused(address):
    with pytest.raises(BadInput, match="postgresql://") as error:
        open_store(address, create=True)
    assert "hush" not in str(error.value)
    assert error.value.field == "store"


UNREACHABLE = [
    "postgresql://u:hush@localhost:1/db?connect_timeout=2",
    "postgresql://localhost:1/db?user=u&password=hush",
    "postgresql://u:hush@/db?host=/nowhere",
    "postgresql://u:hu%73h@[::1]:1/db",
    "postgresql://u:hush@localhost:port/db",
    "postgresql://u:hush@host/db?nonsense=1",
    "postgresql://u:hush@[host/db",
]


@pytest.mark.parametrize("address", UNREACHABLE)
def test_a_server_that_is_not_there_is_told_without_the_password(address):
    with pytest.raises((StoreError, BadInput)) as error:
        open_store(address, create=True)
    assert error.value.remedy
    shown, cause = str(error.value), error.value
    while cause is not None:
        shown += repr(cause)
        cause = cause.__cause__
    assert "hush" not in shown
    assert "hu%73h" not in shown


def test_the_url_of_a_store_hides_the_password(postgres_address):
    secret = postgres_address.replace("unidle@", "unidle:hush@")
    with closing(open_store(secret, create=True)) as store:
        assert "hush" not in store.url
        assert store.url.startswith("postgresql://unidle@/postgres?host=/")
    with closing(
        open_store(secret.replace("postgresql:", "postgres:") + "&password=hush", create=False)
    ) as store:
        assert "hush" not in store.url


def test_a_postgres_store_is_made_only_when_asked_for(postgres_address):
    for read_only in (False, True):
        with pytest.raises(StoreError, match="there is no store"):
            open_store(postgres_address, create=False, read_only=read_only)
    open_store(postgres_address, create=True).close()
    open_store(postgres_address, create=False, read_only=True).close()


LEAN = """
import resource, sys
from unidle.store.open import open_store
store = open_store(sys.argv[1], create=True)
store.append(store.acquire("test"), [])
heavy = {"psycopg", "numpy", "pydantic", "msgspec"} & set(sys.modules)
assert not heavy, heavy
"""


def test_opening_a_sqlite_store_imports_nothing_heavy(tmp_path):
    subprocess.run([sys.executable, "-c", LEAN, str(tmp_path / "store.db")], check=True)


WITHOUT_PSYCOPG = """
import sys
sys.modules["psycopg"] = None
from unidle.errors import StoreError
from unidle.store.open import open_store
try:
    open_store("postgresql://u:hush@host/db", create=False)
except StoreError as error:
    print(error)
"""


def test_a_missing_psycopg_is_told_with_its_remedy():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PSYCOPG], check=True, capture_output=True, text=True)
    assert "needs psycopg" in done.stdout
    assert "pip install 'unidle[postgres]'" in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_a_store_that_is_closed_leaves_only_its_file(tmp_path, event):
    with closing(open_store(str(tmp_path / "store.db"), create=True)) as store:
        store.append(store.acquire("test"), [event(1)])
    open_store(str(tmp_path / "store.db"), create=False, read_only=True).close()
    assert list(tmp_path.iterdir()) == [Path(tmp_path, "store.db")]
