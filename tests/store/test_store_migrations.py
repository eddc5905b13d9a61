"""Revisions: they lead to the same tables as a store made new, and only forward."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect
from sqlalchemy.pool import StaticPool

from unidle.errors import StoreDamaged, StoreError, StoreHeld
from unidle.store import migrate, schema
from unidle.store import open as opening
from unidle.store.database import Database
from unidle.store.postgres import PostgresDatabase
from unidle.store.sql import SqlStore
from unidle.store.sqlite import SqliteDatabase


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


def described(database: Database) -> dict[str, Any]:
    """Tables, columns, types, keys as SQLAlchemy sees them."""
    dialect, _, connection = database.sqlalchemy()
    engine = create_engine(f"{dialect}://", creator=lambda: connection, poolclass=StaticPool)
    found = inspect(engine)
    return {
        table: {
            "columns": [(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(table)],
            "identity": [(c["name"], bool(c.get("identity"))) for c in found.get_columns(table)],
            "key": found.get_pk_constraint(table)["constrained_columns"],
            "unique": found.get_unique_constraints(table),
            "indexes": found.get_indexes(table),
        }
        for table in found.get_table_names()
        if table.startswith("unidle_")
    }


def test_upgrading_from_the_first_revision_gives_the_tables_of_a_new_store(bare):
    upgraded, new = bare("upgraded"), bare("new")
    migrate.run(upgraded, migrate.SCRIPTS)
    opening._make(new)
    assert described(upgraded) == described(new)
    assert set(described(new)) == set(schema.TABLES)
    assert upgraded.query("SELECT version_num FROM unidle_schema") == [(schema.REVISION,)]


def test_the_last_revision_is_the_one_that_the_tables_are_stamped_with():
    assert ScriptDirectory(str(migrate.SCRIPTS)).get_current_head() == schema.REVISION


NEWER = f"{int(schema.REVISION) + 1:04d}"
NEXT = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "{revision}", "{before}"
def upgrade():
    op.add_column("unidle_events", sa.Column("site", sa.Text()))
    {more}
"""


@pytest.fixture
def next_version(tmp_path, monkeypatch):
    """Makes this unidle one revision newer."""

    def install(more: str = "") -> Path:
        scripts = tmp_path / "migrations"
        shutil.copytree(migrate.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
        (scripts / "versions" / f"r{NEWER}.py").write_text(
            NEXT.format(revision=NEWER, before=schema.REVISION, more=more)
        )
        for module in (migrate, opening):
            monkeypatch.setattr(module, "REVISION", NEWER)
        monkeypatch.setattr(migrate, "SCRIPTS", scripts)
        return scripts

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


@pytest.mark.parametrize("more", ["raise RuntimeError('halfway')", "op.execute('SELECT nonsense')"])
def test_an_upgrade_that_fails_changes_nothing(durable, event, next_version, more):
    with closing(durable.open()) as store:
        store.append(store.acquire("test"), [event(1)])
    next_version(more)
    with pytest.raises((RuntimeError, StoreDamaged)):
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


def test_the_revisions_are_found_beside_the_installed_package():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from unidle.store.migrate import SCRIPTS; print(*SCRIPTS.glob('versions/r*.py'))",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "r0001.py" in done.stdout
