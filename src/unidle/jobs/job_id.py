"""Which text can be the id of a job. Ids become names of directories and files, and are printed."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 200


def is_job_id(text: str) -> bool:
    """Whether it is printable, and one part of a path that does not begin with a dot."""
    return 0 < len(text) <= _LONGEST and text.isprintable() and text[0] != "." and "/" not in text
