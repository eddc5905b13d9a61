"""Tracebacks in other forms than Python's own: in a box (Rich), as IPython draws them, inside JSON and quoted strings."""

from __future__ import annotations

import re

from .output_error import OutputError, file_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_TITLE = "Traceback (most recent call last)"
_FOREIGN = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/(?:python|pypy)\d|^<frozen ").search
_RICH_FRAME = re.compile(r"│ (\S.*?\.py):(\d+)(?: in |\s*│?$)").match
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$").match
_CELL_HEAD = re.compile(r"([A-Za-z_][\w.]*)\s{2,}Traceback \(most recent call last\)$").match
_CELL_FILE = re.compile(r"File (\S+?):(\d+)(?:, in .*|\s*)$").match
_CELL = re.compile(r"(?:Cell |Input )?In ?\[(\d+)\](?:, line (\d+)|, in <cell line: (\d+)>)?").match
_OLD_FILE = re.compile(r"(/\S+?|<ipython-input-[^>]*>) in \S+").match
_ARROW = re.compile(r"-+> ?(\d+) ").match
_QUOTE = re.compile(r"""(?<!\\)["']""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_ESCAPE = re.compile(r"\\(?:u00([0-9a-f]{2})|(.))").sub
_EXC_TYPE = re.compile(r'"exc_type": ?"([\w.]+)"').search
_EXC_VALUE = re.compile(r'"exc_value": ?"((?:[^"\\]|\\.)*)"').search
_EXC_FRAME = re.compile(r'"filename": ?"([^"]*)", ?"lineno": ?(\d+)').findall


def rich(lines: list[str], k: int, workdir: str) -> OutputError | None:
    """In the box that Rich draws."""
    places: list[tuple[str, str]] = []
    for at in range(k + 1, min(k + 3000, len(lines))):
        if _TITLE in lines[at]:
            return None
        if (frame := _RICH_FRAME(lines[at])) is not None:
            places.append((frame[1], frame[2]))
        elif lines[at].startswith("╰"):
            raised = next((line for line in lines[at + 1 : at + 3] if _RAISED(line)), "")
            return _found(at, raised, places, workdir) if raised else None
    return None


def ipython(lines: list[str], k: int, workdir: str) -> OutputError | None:
    """As IPython draws it: the name first, then files and the lines around each, the message last."""
    head = _CELL_HEAD(lines[k])
    if head is None:
        return None
    places: list[tuple[str, str]] = []
    file = ""  # of the older form: its line is that of the arrow
    for at in range(k + 1, min(k + 3000, len(lines))):
        line = lines[at]
        if _TITLE in line:
            return None
        if line == head[1] or line.startswith(f"{head[1]}: "):
            return _found(at, line, places, workdir)
        if (frame := _CELL_FILE(line)) is not None:
            places.append((frame[1], frame[2]))
        elif (cell := _CELL(line)) is not None and (number := cell[2] or cell[3]):
            places.append((f"cell {cell[1]}", number))
        elif (old := _OLD_FILE(line)) is not None:
            file = old[1]
        elif file and (arrow := _ARROW(line)) is not None:
            places.append((file, arrow[1]))
            file = ""
    return None


def structured(lines: list[str], k: int, workdir: str) -> OutputError | None:
    """As fields of JSON: ``exc_type``, ``exc_value`` and frames with ``filename`` and ``lineno``."""
    name = _EXC_TYPE(lines[k])
    if name is None:
        return None
    value = _EXC_VALUE(lines[k])
    said = _plain(value[1]) if value is not None else ""
    return _found(k, f"{name[1]}: {said}" if said else name[1], _EXC_FRAME(lines[k]), workdir)


def _found(at: int, raised: str, places: list[tuple[str, str]], workdir: str) -> OutputError:
    own = [place for place in places if not _FOREIGN(place[0])] or places
    where = f"{file_name(own[-1][0], workdir)}:{own[-1][1]}" if own else ""
    sort = "import" if raised.startswith(("ModuleNotFoundError", "ImportError")) else "error"
    return OutputError(at, raised, where, sort, closes=True)  # type: ignore[arg-type]


def unescaped(line: str) -> Iterator[str]:
    """The lines of a traceback that stands inside a quoted string of one line; else the line itself."""
    start = line.find(f"{_TITLE}:\\n") if "\\n" in line else -1
    if start < 0:
        yield line
        return
    opened = [quote[0] for quote in _QUOTE.finditer(line, 0, start)]
    body = line[start:]
    if opened and (end := re.search(rf"(?<!\\){opened[-1]}", body)) is not None:
        body = body[: end.start()]
    yield from _plain(body).split("\n")


def _plain(text: str) -> str:
    """Without the escapes of JSON or of a literal."""
    return _ESCAPE(lambda one: chr(int(one[1], 16)) if one[1] else _ESCAPES.get(one[2], one[0]), text)
