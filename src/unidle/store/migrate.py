"""Upgrading a store of an older version. Alembic is imported only here, and only if needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from unidle.errors import StoreError, StoreHeld
from unidle.store.database import Database
from unidle.store.schema import REVISION, VERSION_TABLE
from unidle.store.sql import SqlStore

SCRIPTS: Final = Path(__file__).parent / "migrations"


def upgrade(database: Database, revision: str, *, read_only: bool) -> None:
    """Bring the tables from ``revision`` to :data:`REVISION`, all or nothing."""
    if revision > REVISION or not revision:
        raise StoreError(
            "the store is of a newer version than this unidle",
            field=database.url,
            value=revision,
            remedy=f"upgrade unidle (this one supports {REVISION})",
        )
    if read_only:
        raise StoreError(
            "the store is of an older version, and was opened for reading only",
            field=database.url,
            value=revision,
            remedy="upgrade it by opening it for writing once: `unidle store compact`",
        )
    held_by = SqlStore(database).holder()
    if held_by:
        raise StoreHeld(
            f"must be upgraded first, and is held by {held_by}",
            field=database.url,
            remedy="wait until it ends, or stop it",
        )
    run(database, SCRIPTS)


def run(database: Database, scripts: Path) -> None:
    """Carry out every revision in ``scripts`` that the database lacks, in one transaction."""
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.runtime.migration import MigrationContext, RevisionStep
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    directory = ScriptDirectory(str(scripts))

    def steps(have: Any, _context: MigrationContext) -> list[RevisionStep]:
        return directory._upgrade_revs("head", have)  # noqa: SLF001 (as alembic's own commands do)

    dialect, begin, connection = database.sqlalchemy()
    engine = create_engine(f"{dialect}://", creator=lambda: connection, poolclass=StaticPool)
    with database.translated(), _unwrapped(), engine.connect() as bound:
        bound.exec_driver_sql(begin)
        database.lock_tables()
        with EnvironmentContext(Config(), directory, fn=steps) as environment:
            environment.configure(connection=bound, version_table=VERSION_TABLE, transactional_ddl=False)
            environment.run_migrations()
        bound.commit()


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Turn SQLAlchemy's errors back into those of the driver."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        raise error.orig or error from error
