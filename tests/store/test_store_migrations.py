"""Revisions: they lead to the same tables as a store made new, and only forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from store.first_version import made_by_the_first_version
from unidle.errors import StoreDamaged, StoreError, StoreHeld
from unidle.store import migrate, schema
from unidle.store import open as opening
from unidle.store.database import Database
from unidle.store.migrate import REVISIONS, Revision
from unidle.store.postgres import PostgresDatabase
from unidle.store.sql import SqlStore
from unidle.store.sqlite import SqliteDatabase

"""A store of the first version, as that version made it."""
SQLITE = (
    """SELECT m.name, i.name, i.type, i."notnull", i.dflt_value, i.pk, m.sql LIKE '%AUTOINCREMENT%'
    FROM sqlite_schema m, pragma_table_xinfo(m.name) i WHERE m.name LIKE 'unidle_%'""",
    """SELECT m.name, l."unique", l.origin, group_concat(i.name)
    FROM sqlite_schema m, pragma_index_list(m.name) l, pragma_index_info(l.name) i
    WHERE m.type = 'table' AND m.name LIKE 'unidle_%' GROUP BY m.name, l.name""",
)
POSTGRES = (
    """SELECT table_name::text, column_name::text, data_type::text, character_maximum_length::int, is_nullable::text,
    column_default::text, is_identity::text, identity_generation::text
    FROM information_schema.columns WHERE table_schema = current_schema() AND starts_with(table_name, 'unidle_')""",
    """SELECT replace(indexdef, current_schema() || '.', '') FROM pg_indexes
    WHERE schemaname = current_schema() AND starts_with(tablename, 'unidle_')""",
)


@pytest.fixture(params=["sqlite", "postgres"])
def bare(request, tmp_path) -> Iterator[Callable[[str], Database]]:
    """A function that gives a database without tables."""
    opened: list[Database] = []

    def make(name: str) -> Database:
        if request.param == "sqlite":
            database: Database = SqliteDatabase(tmp_path / name, create=True)
        else:
            database = PostgresDatabase(request.getfixturevalue("postgres_url"))
            database.execute(f"CREATE SCHEMA {name}")
            database.execute(f"SET search_path = {name}")
        opened.append(database)
        return database

    yield make
    for database in opened:
        if request.param == "postgres":
            database.execute("DO 'BEGIN EXECUTE format(''DROP SCHEMA %I CASCADE'', current_schema()); END'")
        database.close()


def described(database: Database) -> list[set[object]]:
    """Columns with type, default and identity; keys and indexes."""
    catalog = POSTGRES if isinstance(database, PostgresDatabase) else SQLITE
    return [set(database.query(query)) for query in catalog]


def test_upgrading_from_the_first_revision_gives_the_tables_of_a_new_store(bare):
    upgraded, new = made_by_the_first_version(bare("upgraded")), bare("new")
    opening._ready(upgraded, create=False, read_only=False)
    opening._make(new)
    assert described(upgraded) == described(new)
    assert {row[0] for row in described(new)[0]} >= set(schema.TABLES)
    assert upgraded.query("SELECT version_num FROM unidle_schema") == [(schema.REVISION,)]


def test_the_last_revision_is_the_one_that_the_tables_are_stamped_with():
    steps = [schema.FIRST_REVISION, *(step.id for step in REVISIONS)]
    assert steps[-1] == schema.REVISION
    assert steps == [f"{number:04d}" for number in range(1, len(steps) + 1)]


@pytest.mark.parametrize("revision", [None, "", "0000", "9999", "a1b2"])
def test_a_store_of_a_revision_that_is_not_known_is_refused(bare, revision):
    database = made_by_the_first_version(bare("other"))
    if revision is None:
        database.execute("DELETE FROM unidle_schema")
    else:
        database.execute("UPDATE unidle_schema SET version_num = ?", (revision,))
    before = described(database)
    with pytest.raises(StoreError, match=f"newer version than this unidle .*supports {schema.REVISION}"):
        opening._ready(database, create=False, read_only=False)
    assert described(database) == before


NEWER = f"{int(schema.REVISION) + 1:04d}"


@pytest.fixture
def next_version(monkeypatch):
    """Makes this unidle one revision newer."""

    def install(*more: str) -> None:
        added = "ALTER TABLE unidle_events ADD COLUMN site TEXT"
        for module in (migrate, opening):
            monkeypatch.setattr(module, "REVISION", NEWER)
        monkeypatch.setattr(migrate, "REVISIONS", (*REVISIONS, Revision(NEWER, (added, *more))))

    return install


def test_an_older_store_is_upgraded_when_it_is_opened_for_writing(durable, event, next_version):
    with closing(durable.open()) as store:
        store.append(store.acquire("test"), [event(1), event(2)])
    next_version()
    with pytest.raises(
        StoreError, match=f"older version, and was opened for reading only .*'{schema.REVISION}'"
    ):
        durable.open(create=False, read_only=True)
    store = durable.open(create=False)
    assert [found.seq for found in store.read()] == [1, 2]
    assert store._db.query("SELECT count(site), count(*) FROM unidle_events") == [(0, 2)]
    assert store._db.query("SELECT version_num FROM unidle_schema") == [(NEWER,)]
    assert store.append(store.acquire("test"), [event(3)]) == 3
    assert [found.seq for found in durable.open(create=False, read_only=True).read()] == [1, 2, 3]


@pytest.mark.parametrize(
    "more",
    ["SELECT nonsense", "INSERT INTO unidle_schema (version_num) SELECT version_num FROM unidle_schema"],
)
def test_an_upgrade_that_fails_changes_nothing(durable, event, next_version, more):
    with closing(durable.open()) as store:
        store.append(store.acquire("test"), [event(1)])
    next_version(more)
    with pytest.raises(StoreDamaged):
        durable.open(create=False)
    raw = type(store._db)(Path(durable.address) if durable.address.startswith("/") else durable.address)
    with closing(raw):
        assert raw.query("SELECT version_num FROM unidle_schema") == [(schema.REVISION,)]
        assert [found.seq for found in SqlStore(raw).read()] == [1]
        with pytest.raises(StoreDamaged):
            raw.query("SELECT site FROM unidle_events")


def test_a_store_is_not_upgraded_under_a_writer(durable, next_version):
    writer = durable.open()
    writer.acquire("unidle up")
    next_version()
    with pytest.raises(StoreHeld, match="must be upgraded first, and is held by unidle up"):
        durable.open(create=False)
    assert writer._db.query("SELECT version_num FROM unidle_schema") == [(schema.REVISION,)]


def test_of_two_processes_that_upgrade_at_once_one_does_it(durable, event, next_version):
    with closing(durable.open()) as store:
        store.append(store.acquire("test"), [event(1)])
    next_version()
    with ThreadPoolExecutor(4) as pool:
        for opened in list(pool.map(lambda _: durable.open(create=False), range(4))):
            assert opened._db.query("SELECT version_num FROM unidle_schema") == [(NEWER,)]
            assert [found.seq for found in opened.read()] == [1]
