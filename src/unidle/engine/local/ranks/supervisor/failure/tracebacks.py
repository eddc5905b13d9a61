"""Python's tracebacks in a program's output: which exception matters, and the innermost line of the user's own code."""

from __future__ import annotations

import re

from ..affixes import without_suffix
from .output_error import OutputError, file_name, kind_of

HEADER = "Traceback (most recent call last):"
MOST_LINES = 20_000  # of one traceback: a recursion over many modules
PATIENCE = 400  # lines of others in the middle of one
WORK = 4  # lines read at most, for each line that there is
NEAR = 400  # lines between what failed and what reports it

_FRAME = re.compile(r'([\s>]*)File "([^"]*)", line (\d+)(, in .*)?$').match
_ANY_FRAME = re.compile(r'File "[^"]*", line \d+(?:, in .*)?$').search
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?::(?: (.*))?)?$").match
_LEVELS = frozenset(
    {"WARNING", "WARN", "INFO", "ERROR", "DEBUG", "CRITICAL", "FATAL", "NOTE", "Note", "Warning"}
)
_FOREIGN = re.compile(
    r"(?:site|dist)-packages/|/lib(?:64)?/(?:python|pypy)\d[\d.]*/|^<frozen |^<__array_function__"
)
_RANK_TAG = re.compile(  # of PyTorch and torchrun, srun --label, mpirun --tag-output
    r"\[(?:rank|default|[a-z]+)?\d+\]:? ?$|^\d{1,6}: $|\[[\w.@-]+,\d+\]<std(?:err|out)>:? ?$"
)
_FIRST_LEAF = re.compile(r"[\s|+-]* 1 -+$").match
_RAISES = re.compile(r"(?:^|[:;\s])raise\b").search
_NOTEBOOKS = ("CellExecutionError", "PapermillExecutionError")
_CELL = re.compile(r"(?:Cell |Input )?In ?\[(\d+)\], (?:line (\d+)|in <cell line: (\d+)>)").match
_IMPORT = ("ImportError", "ModuleNotFoundError")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_WRAPPERS = (
    "ChildFailedError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "BrokenProcessPool",
    "CalledProcessError",
    "SignalException",
    "SimplifiedTraceback",
    "UnfilteredStackTrace",
)
_WRAPPING = re.compile(
    r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly|^RemoteTraceback|[Ss]ee root cause above"
).search
_MISTAKES = re.compile(r"\d+ validation errors? for ").match
_CAUGHT = re.compile(r"Caught (\S+) in (?:DataLoader worker|pin memory thread|replica)").match


class _Raised:
    """One traceback: ``frames`` are (file, line, whether it has a function, source), the innermost last."""

    __slots__ = ("end", "frames", "link", "message", "name", "start", "tag")

    def __init__(self, start: int, tag: str) -> None:
        self.start = start
        self.end = start
        self.tag = tag
        self.frames: list[tuple[str, int, bool, str]] = []
        self.name = ""
        self.message = ""
        self.link = ""  # to the one before it: "during", "cause", "inner", or none

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def what(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def deliberate(self) -> bool:
        """Raised by a ``raise``, as far as the line is known; not by an accident in a handler."""
        return not self.frames or not self.frames[-1][3] or _RAISES(self.frames[-1][3]) is not None

    @property
    def wraps(self) -> bool:
        """It only reports what failed elsewhere."""
        return self.last_name in _WRAPPERS or _WRAPPING(self.message or self.name) is not None

    def where(self, workdir: str) -> str:
        """The innermost line of the user's own code; without such a line, the innermost of any code."""
        if self.last_name in _SYNTAX and self.frames and not self.frames[-1][2]:
            own = self.frames
        else:
            own = [frame for frame in self.frames if not _FOREIGN.search(frame[0])] or self.frames
        return f"{file_name(own[-1][0], workdir)}:{own[-1][1]}" if own else ""

    @property
    def in_own_code(self) -> bool:
        return any(not _FOREIGN.search(frame[0]) for frame in self.frames)


def exceptions(lines: list[str], workdir: str = "") -> list[OutputError]:
    """What ended the program, and all that looks as if, in the order of the output; chains are one."""
    return [_of_chain(chain, workdir) for chain in _chains(_parse(lines), lines)]


def pick(found: list[OutputError]) -> OutputError | None:
    """The one that ended the program: the last, or what failed first where that only reports a failure."""
    if not found:
        return None
    last = found[-1]
    if not last.symptom and not only_reports(last) and not _RANK_TAG.search(last.tag):
        return last
    tagged = any(_RANK_TAG.search(one.tag) for one in found)
    near = [one for one in found if last.at - one.at <= NEAR and not one.symptom and not only_reports(one)]
    if near and (only_reports(last) or tagged):
        return next((one for one in near if _RANK_TAG.search(one.tag)), near[0]) if tagged else near[0]
    return next((one for one in found if one.symptom), last)


def only_reports(one: OutputError) -> bool:
    """Whether the exception only reports that something else failed, such as a child."""
    name, _, message = one.what.partition(":")
    return name.rpartition(".")[2] in _WRAPPERS or _WRAPPING(message.strip() or name) is not None


def _of_chain(chain: list[_Raised], workdir: str) -> OutputError:
    """The exception that matters of those that led to each other, the first first."""
    k = len(chain) - 1
    while k > 0 and (
        chain[k].link == "inner" or chain[k].wraps or (chain[k].link == "during" and not chain[k].deliberate)
    ):
        if chain[k].link == "inner":
            break  # what a worker reported: printed last, raised first
        k -= 1
    main, root = chain[k], chain[0]
    of_data = any(_CAUGHT(one.message) and "replica" not in one.message for one in chain)
    what, where = main.what, main.where(workdir)
    inner = main.link == "inner"
    if not main.in_own_code:  # as that of a handler which was called in the middle of a library
        where = next((one.where(workdir) for one in chain if one.in_own_code), where)
    if k > 0 and not inner and root.what and not root.wraps and root.name != "RemoteTraceback":
        if root.what == main.what and root.in_own_code:
            where = root.where(workdir)
        elif root.what != main.what:
            what = f"{_cut(what, 240)}, from {_cut(root.what, 150)}"
    kind = kind_of(what, of_data=of_data)
    sort = "import" if main.last_name in _IMPORT else "syntax" if main.last_name in _SYNTAX else "error"
    if sort == "syntax" and (not main.frames or main.frames[-1][2] or main.frames[-1][0].startswith("<")):
        sort = "error"  # of a text that the program read, not of the program
    return OutputError(chain[-1].end, what, where, sort, kind, main.tag, closes=True)  # type: ignore[arg-type]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _chains(raised: list[_Raised], lines: list[str]) -> list[list[_Raised]]:
    chains: list[list[_Raised]] = []
    for one in raised:
        if chains and chains[-1][-1].tag == one.tag:
            one.link = one.link or _link(lines, chains[-1][-1].end + 1, one.start)
        if chains and one.link:
            chains[-1].append(one)
        else:
            chains.append([one])
    return chains


def _link(lines: list[str], start: int, end: int) -> str:
    """How two tracebacks belong together, by the few lines between them."""
    for line in lines[start : min(end, start + 60)]:
        if "During handling of the above exception" in line:
            return "during"
        if "was the direct cause of the following exception" in line:
            return "cause"
        if "terminated with the following error" in line:
            return "inner"
    return ""


def _parse(lines: list[str]) -> list[_Raised]:
    found: list[_Raised] = []
    k, work = 0, WORK * len(lines)
    read_to: dict[str, int] = {}  # by what stands before the lines
    while k < len(lines) and work > 0:
        begins = _begins(lines[k])
        if begins is None or (k < read_to.get(begins[0].prefix, 0) and not begins[2]):
            k += 1
            continue
        strip, link, is_group, first = begins
        one, end = _read(lines, k + first, strip)
        work -= end - k
        read_to[strip.prefix] = end
        if one is not None:
            one.link = link
            found.append(one)
            if is_group:
                _take_leaf(lines, one)
                read_to[strip.prefix] = end = one.end + 1
        # others may write in between: of those that are tagged each line is looked at
        k = k + 1 if one is None or _RANK_TAG.search(one.tag) else max(end, k + 1)
    return found


def _begins(line: str) -> tuple[_Strip, str, bool, int] | None:
    """Where a traceback begins: how its lines are read, its link, whether it is a group's, and the offset of its first line."""
    at = line.find(HEADER)
    if at < 0:  # one whose header is not there, as of a syntax error
        frame = _ANY_FRAME(line) if 'File "' in line else None
        return None if frame is None else (_Strip(without_suffix(line[: frame.start()], "  ")), "", False, 0)
    prefix = line[:at]
    if prefix.endswith("Original "):
        return _Strip(prefix[:-9]), "inner", False, 1
    if prefix.endswith("+ Exception Group "):
        return _Strip(prefix[:-18] + "| "), "", True, 1
    return _Strip(prefix), "", False, 1


def _take_leaf(lines: list[str], group: _Raised) -> None:
    """A group's first exception that has no traceback of its own is read here; others are found by their header."""
    for k in range(group.end + 1, min(group.end + 8, len(lines) - 1)):
        if _FIRST_LEAF(lines[k]):
            raised = _RAISED(lines[k + 1].lstrip(" |"))
            if raised is not None and HEADER not in lines[k + 1]:
                group.message = f"{group.message}: {raised[0]}"
                return
            if HEADER not in lines[k + 1]:
                return
            leaf, _ = _read(lines, k + 2, _Strip(lines[k + 1][: lines[k + 1].find(HEADER)]))
            if leaf is not None:
                group.name, group.message, group.frames = leaf.name, leaf.message, leaf.frames
                _skip_leaves(lines, group, leaf)
            return


def _skip_leaves(lines: list[str], group: _Raised, leaf: _Raised) -> None:
    group.end = leaf.end
    while group.end + 1 < len(lines) and lines[group.end + 1].lstrip(" ").startswith(("|", "+")):
        group.end += 1


class _Strip:
    """Takes off what stands before each line of one traceback: an indent, a tag of the rank, a time.

    A prefix with figures is taken for a time where it is not a rank's tag: its figures may change.
    """

    __slots__ = ("_shape", "prefix")

    def __init__(self, prefix: str) -> None:
        if prefix.rstrip().endswith("traceback :"):
            prefix = "  "  # in a table of torchrun
        self.prefix = prefix
        self._shape = None
        if not _RANK_TAG.search(prefix) and any(c.isdigit() for c in prefix) and len(prefix) < 200:
            parts = (r"\d+" if part.isdigit() else re.escape(part) for part in re.split(r"(\d+)", prefix))
            self._shape = re.compile("".join(parts)).match

    def __call__(self, line: str) -> str | None:
        """The line without it; None for a line of others."""
        if line.startswith(self.prefix):
            return line[len(self.prefix) :]
        if self._shape is not None:
            found = self._shape(line)
            return line[found.end() :] if found is not None else line
        if not line.strip():
            return ""
        # an indent, or words of a logger, may stand before the header only
        return None if _RANK_TAG.search(self.prefix) or self.prefix.lstrip().startswith("|") else line


def _read(lines: list[str], start: int, strip: _Strip) -> tuple[_Raised | None, int]:
    """The traceback whose lines begin at ``start``, None where no exception ends it; and where reading ended."""
    one = _Raised(start, strip.prefix)
    others, k = 0, start
    for k in range(start, min(len(lines), start + MOST_LINES)):
        body = strip(lines[k])
        if others > PATIENCE:
            break
        if body is None:
            others += 1
            continue
        frame = _FRAME(body) if 'File "' in body else None
        if frame is not None:
            one.frames.append((frame[2], int(frame[3]), frame[4] is not None, ""))
        elif HEADER in body:
            break
        elif body[:1] in (" ", "\t"):
            if one.frames and not one.frames[-1][3]:
                one.frames[-1] = (*one.frames[-1][:3], body.strip())
        elif body and (raised := _RAISED(body)) is not None and _is_exception(raised[1]):
            one.name, one.message, one.end = raised[1], (raised[2] or "").strip(), k
            if one.last_name in _NOTEBOOKS:
                _take_cell(lines, one)
            else:
                _more_of_message(lines, strip, one)
            return one, k + 1
        elif body:
            others += 1
    return None, k


def _is_exception(name: str) -> bool:
    """Whether a word at the beginning of a line may be an exception's name."""
    last = name.rpartition(".")[2]
    if name in _LEVELS or not last:
        return False
    return last[0].isupper() or "." in name or last.endswith(("error", "exception")) or last == "timeout"


def _take_cell(lines: list[str], one: _Raised) -> None:
    """What a notebook's cell raised stands in the message of what ran the notebook."""
    for k in range(one.end + 1, len(lines)):
        if HEADER in lines[k]:
            return
        cell = _CELL(lines[k])
        if cell is not None:
            one.frames = [(f"cell {cell[1]}", int(cell[2] or cell[3]), True, "")]
        raised = _RAISED(lines[k])
        if raised is not None and raised[2] and _is_exception(raised[1]):
            one.name, one.message, one.end = raised[1], raised[2].strip(), k


def _more_of_message(lines: list[str], strip: _Strip, one: _Raised) -> None:
    """Complete a message whose first line is not enough: add the next line; of a list of mistakes, add the first one."""
    if _MISTAKES(one.message):
        first = [(strip(line) or "").strip() for line in lines[one.end + 1 : one.end + 3]]
        one.message = ": ".join([one.message, *filter(None, first)])
        return
    if one.message and not one.message.endswith(":"):
        return
    if one.last_name in ("ChildFailedError", "RemoteTraceback"):
        return
    for line in lines[one.end + 1 : one.end + 4]:
        body = (strip(line) or "").strip()
        if body.startswith(("-- Process", '"""', "During handling", "The above exception")) or HEADER in body:
            return
        if body and not one.message and _RAISED(body) and not line.startswith((" ", "\t")):
            return  # something else begins
        if body:
            one.message = f"{one.message} {body}".strip()
            return
