"""Opening a store by path or URL."""

from __future__ import annotations

from pathlib import Path

from unidle.atomic import PRIVATE
from unidle.errors import BadInput
from unidle.store import statements as sql
from unidle.store.checksum import fields_crc
from unidle.store.database import Database, foreign, no_store
from unidle.store.schema import READABLE, REVISION, VERSION_TABLE, create_statements
from unidle.store.sql import SqlStore


def open_store(url_or_path: str, *, create: bool, read_only: bool = False, mode: int = PRIVATE) -> SqlStore:
    """The store at a path, ``sqlite:///PATH`` or ``postgresql://...``; that of a cluster's controller, ``kubernetes://CONTEXT``.

    ``create``: create it if it does not exist. ``read_only`` works on a store that may not be written and next to
    a writer. ``mode``: of a file that is made; one that exists keeps its own. Errors: :class:`BadInput` for an address of another kind, :class:`StoreDamaged`, else
    :class:`StoreError`.
    """
    if url_or_path.startswith("kubernetes://"):
        return _of_cluster(url_or_path)
    database = _connect(url_or_path, create=create, read_only=read_only, mode=mode)
    try:
        _ready(database, create=create and not read_only, read_only=read_only)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, read_only=read_only)


def _of_cluster(address: str) -> SqlStore:
    from unidle.store.cluster import ClusterDatabase, ClusterStore

    database = ClusterDatabase(address)
    try:
        _ready(database, create=False, read_only=True)
    except BaseException:
        database.close()
        raise
    return ClusterStore(database)


def _connect(address: str, *, create: bool, read_only: bool, mode: int) -> Database:
    scheme, separator, rest = address.partition("://")
    if not separator:
        if not address.strip() or "\0" in address:
            raise BadInput(
                "is not a path", field="store", value=address, remedy="give a path or postgresql://..."
            )
        from unidle.store.sqlite import SqliteDatabase

        return SqliteDatabase(Path(address), create=create, read_only=read_only, mode=mode)
    if scheme == "sqlite" and rest.startswith("/") and rest != "/":
        return _connect(rest[1:], create=create, read_only=read_only, mode=mode)
    if scheme in ("postgresql", "postgres"):
        from unidle.store.postgres import PostgresDatabase

        return PostgresDatabase(address, read_only=read_only)
    raise BadInput(
        "is not an address of a store",
        field="store",
        value=f"{scheme}://",
        remedy="give a path, sqlite:///PATH, postgresql://HOST/DATABASE or kubernetes://CONTEXT",
    )


def _ready(database: Database, *, create: bool, read_only: bool) -> None:
    """See that the tables are there and of this version; make or upgrade them where allowed."""
    tables = database.tables()
    if VERSION_TABLE not in tables:
        if tables:
            raise foreign(database.url)
        if not create:
            raise no_store(database.url)
        return _make(database)
    revisions = database.query(sql.REVISION_IS)
    revision = revisions[0][0] if revisions else ""
    if revision == REVISION or (read_only and revision in READABLE):
        return None
    from unidle.store.migrate import upgrade

    return upgrade(database, revision, read_only=read_only)


def _make(database: Database) -> None:
    with database.transaction():
        database.lock_tables()
        if VERSION_TABLE in database.tables():  # another process was faster
            return
        for statement in create_statements(database.types):
            database.execute(statement)
        database.execute(sql.FIRST_WRITER, (fields_crc(0, None, 0, 0, 0),))
        database.execute(sql.STAMP, (REVISION,))
