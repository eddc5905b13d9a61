"""The ``--kernel-log`` option of commands: which kernel log is read."""

from __future__ import annotations

from pathlib import Path

from unidle.errors import BadInput


def log_source(source: str | None, field: str) -> str:
    """``kmsg``, ``syslog``, ``journal``, ``off`` or the absolute path of a file, as checks have other working directories; empty: not given.

    Errors: :class:`unidle.errors.BadInput`.
    """
    if source is None or source in ("kmsg", "syslog", "journal", "off"):
        return source or ""
    if not source or not source.isprintable():
        raise BadInput(
            "is not a file's name",
            field=field,
            value=source,
            remedy="use kmsg, syslog, journal, off or a file",
        )
    return str(Path(source).absolute())
