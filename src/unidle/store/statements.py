"""Every statement of the store, once. ``?`` and ``{now}`` are put into the dialect's form."""

from __future__ import annotations

from typing import Final

REVISION_IS: Final = "SELECT version_num FROM unidle_schema"
STAMP: Final = "INSERT INTO unidle_schema (version_num) VALUES (?)"
SET_REVISION: Final = "UPDATE unidle_schema SET version_num = ?"

FIRST_WRITER: Final = (
    "INSERT INTO unidle_writer (id, token, holder, expires_ns, last_seq, last_time_ns, crc)"
    " VALUES (1, 0, NULL, 0, 0, 0, ?)"
)
WRITER: Final = (
    "SELECT token, holder, expires_ns, last_seq, last_time_ns, crc, {now} FROM unidle_writer WHERE id = 1"
)
# The old token and expiry are the fence: of two writers that read the same row only one changes it.
SET_WRITER: Final = (
    "UPDATE unidle_writer SET token = ?, holder = ?, expires_ns = ?, last_seq = ?, last_time_ns = ?, crc = ?"
    " WHERE id = 1 AND token = ? AND expires_ns = ?"
)

ADD_EVENT: Final = (
    "INSERT INTO unidle_events (seq, time_ns, source, source_seq, kind, body, crc)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
EVENTS: Final = (
    "SELECT seq, time_ns, source, source_seq, kind, body, crc FROM unidle_events"
    " WHERE seq > ? ORDER BY seq LIMIT ?"
)

ADD_REQUEST: Final = "INSERT INTO unidle_requests (time_ns, kind, body, crc) VALUES (?, ?, ?, ?)"
ADD_SIGNED_REQUEST: Final = (
    "INSERT INTO unidle_requests (time_ns, kind, body, crc, sender) VALUES (?, ?, ?, ?, ?)"
)
REQUESTS: Final = "SELECT id, time_ns, kind, body, crc, sender FROM unidle_requests ORDER BY id LIMIT ?"
UNSIGNED_REQUESTS: Final = "SELECT id, time_ns, kind, body, crc, '' FROM unidle_requests ORDER BY id LIMIT ?"
REQUEST_IS: Final = "SELECT 1 FROM unidle_requests WHERE id = ?"
REQUEST_IDS: Final = "SELECT id FROM unidle_requests ORDER BY id LIMIT ?"
REQUEST: Final = "SELECT id, time_ns, kind, body, crc, sender FROM unidle_requests WHERE id = ?"
UNSIGNED_REQUEST: Final = "SELECT id, time_ns, kind, body, crc, '' FROM unidle_requests WHERE id = ?"
DROP_REQUEST: Final = "DELETE FROM unidle_requests WHERE id = ?"

ADD_SNAPSHOT: Final = "INSERT INTO unidle_snapshots (fold_version, seq, crc, body) VALUES (?, ?, ?, ?)"
SNAPSHOTS: Final = "SELECT seq, crc, body FROM unidle_snapshots WHERE fold_version = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
SNAPSHOT_KEYS: Final = "SELECT fold_version, seq FROM unidle_snapshots ORDER BY fold_version, seq"
SNAPSHOT: Final = "SELECT crc, body FROM unidle_snapshots WHERE fold_version = ? AND seq = ?"
DROP_SNAPSHOTS_UNTIL: Final = "DELETE FROM unidle_snapshots WHERE fold_version = ? AND seq <= ?"

ADD_SEGMENT: Final = (
    "INSERT INTO unidle_segments (seq, fold_version, start_ns, end_ns, row_count, body_crc, crc, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
SEGMENTS: Final = (
    "SELECT id, seq, fold_version, start_ns, end_ns, row_count, body_crc, crc FROM unidle_segments"
    " WHERE fold_version = ? ORDER BY seq, id"
)
SEGMENT_VERSIONS: Final = "SELECT DISTINCT fold_version FROM unidle_segments ORDER BY fold_version"
SEGMENT_BODY: Final = "SELECT body_crc, body FROM unidle_segments WHERE id = ?"

BOOKMARK: Final = "SELECT seq, crc, body FROM unidle_bookmarks WHERE name = ?"
BOOKMARK_NAMES: Final = "SELECT name FROM unidle_bookmarks ORDER BY name"
SET_BOOKMARK: Final = (
    "INSERT INTO unidle_bookmarks (name, seq, crc, body) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET seq = excluded.seq, crc = excluded.crc, body = excluded.body"
)

# Superseded: of an older fold version than the newest snapshot.
DROP_OLD_SEGMENTS: Final = (
    "DELETE FROM unidle_segments WHERE fold_version < (SELECT max(fold_version) FROM unidle_snapshots)"
)
DROP_OLD_SNAPSHOTS: Final = (
    "DELETE FROM unidle_snapshots WHERE fold_version < (SELECT max(fold_version) FROM unidle_snapshots)"
)

ADD_VIEW_ROW: Final = (
    "INSERT INTO unidle_view_rows (fold_version, part, key, position, seq, crc, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (fold_version, part, key) DO UPDATE SET position = excluded.position, seq = excluded.seq,"
    " crc = excluded.crc, body = excluded.body"
)
_VIEW_ROWS: Final = (
    "SELECT key, position, seq, crc, body FROM unidle_view_rows"
    " WHERE fold_version = ? AND part = ? AND seq <= ?"
)
VIEW_ROW: Final = f"{_VIEW_ROWS} AND key = ?"
VIEW_ROWS_UP: Final = f"{_VIEW_ROWS} AND position > ? ORDER BY position LIMIT ?"
VIEW_ROWS_DOWN: Final = f"{_VIEW_ROWS} AND position < ? ORDER BY position DESC LIMIT ?"
VIEW_ROW_KEYS: Final = "SELECT key FROM unidle_view_rows WHERE fold_version = ? AND part = ?"
VIEW_PARTS: Final = "SELECT DISTINCT fold_version, part FROM unidle_view_rows ORDER BY fold_version, part"
DROP_VIEW_ROW: Final = "DELETE FROM unidle_view_rows WHERE fold_version = ? AND part = ? AND key = ?"
DROP_OLD_VIEW_ROWS: Final = (
    "DELETE FROM unidle_view_rows WHERE fold_version < (SELECT max(fold_version) FROM unidle_snapshots)"
)

ADD_PROFILE: Final = (
    "INSERT INTO unidle_profiles (job, start_ns, attempt, rank, end_ns, looks, n_bytes, crc, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, start_ns, attempt, rank) DO NOTHING"
)
PROFILE: Final = (
    "SELECT job, start_ns, attempt, rank, end_ns, looks, n_bytes, crc, body FROM unidle_profiles"
    " WHERE job = ? AND start_ns = ? AND attempt = ? AND rank = ?"
)
PROFILE_INFOS: Final = (
    "SELECT job, start_ns, attempt, rank, end_ns, looks, n_bytes FROM unidle_profiles"
    " WHERE job = ? ORDER BY start_ns, attempt, rank LIMIT ?"
)
PROFILE_SPANS: Final = (
    "SELECT job, start_ns, attempt, rank, end_ns, looks, n_bytes FROM unidle_profiles"
    " WHERE job = ? AND start_ns < ? AND end_ns > ? ORDER BY start_ns, attempt, rank"
)
PROFILE_TOTALS: Final = (
    "SELECT job, CAST(sum(n_bytes) AS BIGINT), min(start_ns) FROM unidle_profiles GROUP BY job ORDER BY job"
)
PROFILE_KEYS: Final = (
    "SELECT job, start_ns, attempt, rank FROM unidle_profiles ORDER BY job, start_ns, attempt, rank"
)
DROP_PROFILE: Final = (
    "DELETE FROM unidle_profiles WHERE job = ? AND start_ns = ? AND attempt = ? AND rank = ?"
)
DROP_PROFILES_OF: Final = "DELETE FROM unidle_profiles WHERE job = ?"
DROP_PROFILES_BEFORE: Final = "DELETE FROM unidle_profiles WHERE end_ns <= ?"
ADD_ARCHIVE: Final = (
    "INSERT INTO unidle_archives (job, part, is_last, n_bytes, crc, body) VALUES (?, ?, ?, ?, ?, ?)"
)
ARCHIVE_PART: Final = "SELECT is_last, n_bytes, crc, body FROM unidle_archives WHERE job = ? AND part = ?"
ARCHIVE_ENDS: Final = "SELECT part FROM unidle_archives WHERE job = ? AND is_last = 1"
ARCHIVE_SIZE: Final = "SELECT CAST(sum(n_bytes) AS BIGINT) FROM unidle_archives WHERE job = ?"
ARCHIVE_TOTALS: Final = (
    "SELECT job, CAST(sum(n_bytes) AS BIGINT), max(is_last) FROM unidle_archives GROUP BY job ORDER BY job"
)
DROP_ARCHIVE: Final = "DELETE FROM unidle_archives WHERE job = ?"
