"""Stores to try: one of each kind, made new for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest

from unidle.store.memory import MemoryStore
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
from unidle.store.sql import SqlStore

AnyStore: TypeAlias = SqlStore | MemoryStore
_NUMBERS = itertools.count(1)


@dataclass
class Place:
    """Where a test's store is: every call of :meth:`open` is another client of the same store."""

    address: str
    _memory: MemoryStore | None = None

    def open(self, *, create: bool = True, read_only: bool = False) -> AnyStore:
        if self.address == "memory":
            self._memory = self._memory or MemoryStore()
            return self._memory
        store = open_store(self.address, create=create, read_only=read_only)
        self._opened.append(store)
        return store

    def __post_init__(self) -> None:
        self._opened: list[SqlStore] = []

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture
def postgres_address(postgres_url: str) -> Iterator[str]:
    """A schema of its own in the session's server."""
    schema = f"test_{next(_NUMBERS)}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{postgres_url}&options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def _address(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind == "memory":
        return "memory"
    return str(tmp_path / "store.db") if kind == "sqlite" else request.getfixturevalue("postgres_address")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each kind of store."""
    place = Place(_address(request.param, tmp_path, request))
    yield place
    place.close()


@pytest.fixture(params=["sqlite", "postgres"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each kind of store that other processes can open."""
    place = Place(_address(request.param, tmp_path, request))
    yield place
    place.close()


@pytest.fixture
def store(place: Place) -> AnyStore:
    return place.open()


@pytest.fixture
def event() -> Callable[..., NewEvent]:
    """An event of number ``n``; every field follows from it."""

    def make(n: int, *, time_ns: int | None = None, body: bytes | None = None) -> NewEvent:
        return NewEvent(
            n * 10 if time_ns is None else time_ns,
            f"rank {n % 4}",
            n,
            "rank_saw",
            b'{"n":%d}' % n if body is None else body,
        )

    return make
