"""A store as the first version made it."""

from __future__ import annotations

from unidle.store import statements
from unidle.store.checksum import fields_crc
from unidle.store.database import Database

FIRST = (
    "CREATE TABLE unidle_schema (version_num VARCHAR(32) NOT NULL, CONSTRAINT unidle_schema_pkc PRIMARY KEY (version_num))",
    "INSERT INTO unidle_schema (version_num) VALUES ('0001')",
    """CREATE TABLE unidle_writer (
        id {key} NOT NULL PRIMARY KEY, token {int} NOT NULL, holder TEXT, expires_ns {int} NOT NULL,
        last_seq {int} NOT NULL, last_time_ns {int} NOT NULL, crc {int} NOT NULL)""",
    """CREATE TABLE unidle_events (
        seq {key} NOT NULL PRIMARY KEY, time_ns {int} NOT NULL, source TEXT NOT NULL, source_seq {int} NOT NULL,
        kind TEXT NOT NULL, body {blob} NOT NULL, crc {int} NOT NULL)""",
    """CREATE TABLE unidle_requests (
        id {serial}, time_ns {int} NOT NULL, kind TEXT NOT NULL, body {blob} NOT NULL, crc {int} NOT NULL)""",
    """CREATE TABLE unidle_snapshots (
        fold_version {int} NOT NULL, seq {int} NOT NULL, crc {int} NOT NULL, body {blob} NOT NULL,
        PRIMARY KEY (fold_version, seq))""",
    """CREATE TABLE unidle_segments (
        id {serial}, seq {int} NOT NULL, fold_version {int} NOT NULL, start_ns {int} NOT NULL, end_ns {int} NOT NULL,
        row_count {int} NOT NULL, body_crc {int} NOT NULL, crc {int} NOT NULL, body {blob} NOT NULL)""",
)


def made_by_the_first_version(database: Database) -> Database:
    for statement in FIRST:
        database.execute(statement.format(**database.types))
    database.execute(statements.FIRST_WRITER, (fields_crc(0, None, 0, 0, 0),))
    return database
