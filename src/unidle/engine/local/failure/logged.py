"""What a logger puts before its message: a time, a level, its own name. A reason is the message alone."""

from __future__ import annotations

import re

_TIME = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
_LEVEL = r"(?:\[(?:ERROR|CRITICAL|FATAL)\]|(?:ERROR|CRITICAL|FATAL)\b)"
_BETWEEN = r"[\s:|-]{0,8}"
_WORD = r"(?![\w.]*(?:[Ee]rror|[Ee]xception|timeout)\b)[A-Za-z_][\w.]{0,99}"
_NAME = rf"(?:\[{_WORD}\]|{_WORD}(?=(?::| [-|]) ))"
_PREFIX = re.compile(
    rf"{_TIME}{_BETWEEN}(?:{_NAME}{_BETWEEN})?{_LEVEL}{_BETWEEN}(?:{_NAME}{_BETWEEN})?"
    rf"|(?:ERROR|CRITICAL|FATAL):{_WORD}:\s*"
    r"|[EF]\d{4,8} \d\d:\d\d:\d\d[.\d]{0,10}\s{1,8}\d{1,9} [^\s:\]]{1,200}:\d{1,9}\] "
).match


def message_of(line: str) -> str:
    """The line without a logger's prefix; the whole line where nothing would be left."""
    found = _PREFIX(line)
    rest = "" if found is None else line[found.end() :].strip()
    return rest or line
