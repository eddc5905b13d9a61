"""The tables, in SQL that SQLite and PostgreSQL both understand.

Every row carries ``crc``. The one row of ``unidle_writer`` is both the lease and the head of the
log: an append changes it in the same transaction, so a log that lost its tail is detected.
A change here needs a new :data:`REVISION`, and its statements in ``migrate.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REVISION: Final = "0006"
FIRST_REVISION: Final = "0001"
READABLE: Final = ("0003", "0004", "0005")
"""Older revisions that are read as they are; they are upgraded when the store is opened for writing."""
UNSIGNED: Final = ("0003",)
"""Of these the ones whose requests have no sender."""
VERSION_TABLE: Final = "unidle_schema"  # holds the current revision

# {key}, {serial}, {int}, {blob} and {user} are the dialect's: see Dialect.types. The sender of a request is not in its
# checksum: PostgreSQL writes it by itself.
TABLES: Final[dict[str, str]] = {
    VERSION_TABLE: "version_num VARCHAR(32) NOT NULL, CONSTRAINT unidle_schema_pkc PRIMARY KEY (version_num)",
    "unidle_writer": """
        id {key} NOT NULL PRIMARY KEY,
        token {int} NOT NULL,
        holder TEXT,
        expires_ns {int} NOT NULL,
        last_seq {int} NOT NULL,
        last_time_ns {int} NOT NULL,
        crc {int} NOT NULL""",
    "unidle_events": """
        seq {key} NOT NULL PRIMARY KEY,
        time_ns {int} NOT NULL,
        source TEXT NOT NULL,
        source_seq {int} NOT NULL,
        kind TEXT NOT NULL,
        body {blob} NOT NULL,
        crc {int} NOT NULL""",
    "unidle_requests": """
        id {serial},
        time_ns {int} NOT NULL,
        kind TEXT NOT NULL,
        body {blob} NOT NULL,
        crc {int} NOT NULL,
        sender TEXT DEFAULT {user} NOT NULL""",
    "unidle_snapshots": """
        fold_version {int} NOT NULL,
        seq {int} NOT NULL,
        crc {int} NOT NULL,
        body {blob} NOT NULL,
        PRIMARY KEY (fold_version, seq)""",
    "unidle_segments": """
        id {serial},
        seq {int} NOT NULL,
        fold_version {int} NOT NULL,
        start_ns {int} NOT NULL,
        end_ns {int} NOT NULL,
        row_count {int} NOT NULL,
        body_crc {int} NOT NULL,
        crc {int} NOT NULL,
        body {blob} NOT NULL""",
    "unidle_bookmarks": """
        name VARCHAR(64) NOT NULL PRIMARY KEY,
        seq {int} NOT NULL,
        crc {int} NOT NULL,
        body {blob} NOT NULL""",
    "unidle_profiles": """
        job TEXT NOT NULL,
        start_ns {int} NOT NULL,
        attempt {int} NOT NULL,
        rank {int} NOT NULL,
        end_ns {int} NOT NULL,
        looks {int} NOT NULL,
        n_bytes {int} NOT NULL,
        crc {int} NOT NULL,
        body {blob} NOT NULL,
        PRIMARY KEY (job, start_ns, attempt, rank)""",
    "unidle_archives": """
        job TEXT NOT NULL,
        part {int} NOT NULL,
        is_last {int} NOT NULL,
        n_bytes {int} NOT NULL,
        crc {int} NOT NULL,
        body {blob} NOT NULL,
        PRIMARY KEY (job, part)""",
    "unidle_view_rows": """
        fold_version {int} NOT NULL,
        part VARCHAR(32) NOT NULL,
        key TEXT NOT NULL,
        position {int} NOT NULL,
        seq {int} NOT NULL,
        crc {int} NOT NULL,
        body {blob} NOT NULL,
        PRIMARY KEY (fold_version, part, key)""",
}
INDEXES: Final = (
    "CREATE INDEX unidle_view_rows_position ON unidle_view_rows (fold_version, part, position)",
)


def create_statements(types: Mapping[str, str]) -> list[str]:
    """The statements that make an empty store, its revision not yet stamped."""
    tables = [f"CREATE TABLE {name} ({columns.format(**types).strip()})" for name, columns in TABLES.items()]
    return [*tables, *INDEXES]
