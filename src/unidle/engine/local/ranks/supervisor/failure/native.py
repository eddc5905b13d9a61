"""Failures that are not Python's: C and C++, glibc, CUDA, NCCL, Go, Rust, Java, Node, the shell, missing programs."""

from __future__ import annotations

import re

from . import formatted, languages, usage
from .output_error import OutputError, file_name, kind_of

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable

    from .output_error import Kind

    Reader = Callable[[list[str], int, str], "OutputError | None"]

_GLIBC = (
    "double free or corruption", "free(): ", "malloc(): ", "realloc(): ", "munmap_chunk(): ", "corrupted size vs. prev_size",
    "corrupted double-linked list", "malloc_consolidate(): ", "*** stack smashing detected ***", "*** buffer overflow detected ***",
)  # fmt: skip
_THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'").search
_WHAT = re.compile(r"\s+what\(\):\s*(.*)").match
_PLACE = re.compile(r"([^\s:]+):(\d+): ").search
_CHECKED = re.compile(r"(?:F\d{4,8} [\d:.]+\s+\d+|[\d-]+ [\d:.]+: F) ([^\s:]+):(\d+)\] (.*)").match
_UNDEFINED = re.compile(r"(\S+?):(\d+):\d+: (runtime error: .+)").match
_SANITIZER = re.compile(
    r".*\b((?:Address|Leak|Memory|Thread|UndefinedBehavior)Sanitizer): (?!CHECK failed)(.+?)(?: (?:on|at pc|\(pid).*)?$"
).match
_SANITIZER_FRAME = re.compile(r"\s+#\d+ (?:0x\w+ in )?\S.* (/?[^\s:]+):(\d+)(?::\d+)?(?: |$)").match
_RUN_TIME = re.compile(r"/sysdeps/|/csu/|sanitizer|compiler-rt|asan_").search
_FATAL_FRAME = re.compile(r'\s+File "([^"]*)", line (\d+) in ').match
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/(?:python|pypy)\d[\d.]*/|^<frozen ").search
_SHELL = re.compile(r"(\S+): (?:line )?(\d+): (.*)$").match
_SHELL_SAYS = re.compile(
    r"(.+: (?:command )?not found|.+: Permission denied|.+: No such file or directory|.+: Is a directory|.+: unbound variable"
    r"|.+: Exec format error|syntax error.*|Syntax error.*|.*unexpected EOF.*|.+: parameter .+|.+: bad interpreter.*)$"
).match
_SHELL_KILLED = re.compile(
    r"(\S+): line (\d+):\s+\d+ (Killed|Segmentation fault|Bus error|Aborted|Floating point exception|Illegal instruction|Terminated)"
    r"(?: *\(core dumped\))?\s*(.*)$"
).match
_NO_PROGRAM = re.compile(
    r"(?:[\w./-]*(?:ba|da|z|k)?sh|zsh): (?:\d+: )?(?:cannot open |command not found: )?(\S+)(?:: No such file(?: or directory)?|: Permission denied|$)"
    r"|[\w./-]*python[\w.]*: can't open file .+|[\w./-]*env: .+: No such file or directory|.+: error while loading shared libraries: .+"
    r"|Error: Unable to access jarfile .+|Error: Could not find or load main class .+|Can't open perl script .+"
    r"|Fatal error: cannot open file .+|\S+: cannot execute: .+|\S+: Exec format error"
).match
_NO_MODULE = re.compile(
    r"[\w./-]*python[\w.]*: (No module named .+|Error while finding module specification .+)"
).match
_CUDA = re.compile(r"CUDA (?:error|failure|Error)[ :].*|CUDA_ERROR_\w+.*|cudaError\w+.*").search
_NCCL = re.compile(
    r"NCCL (?:WARN|failure|error).*|ncclSystemError.*|ncclInternalError.*", re.IGNORECASE
).search
_DEVICE_ASSERT = re.compile(r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] (Assertion .+)").search
_ROOT_CAUSE = "Root Cause (first observed failure):"
_TABLE = re.compile(r"\s+(rank|exitcode|traceback)\s*: (.*)").match
_WORDS = re.compile(
    r"\berror\b|\bfatal\b|\bfail(?:ed|ure)?\b|\bcannot\b|\bcan't\b|\bcould not\b|\bunable to\b|\babort|\bdenied\b|\bnot found\b|\bno such\b"
    r"|\binvalid\b|\bexception\b|\bpanic\b|\bunrecognized\b|\bmissing\b|\brefused\b|\bexpected\b|\bdied at\b",
    re.IGNORECASE,
).search
_NOISE = re.compile(
    r"\d+%\||it/s\]|s/it\]|^\s*[=\-*#~_.+|^]{3,}\s*$|\bwarn(?:ing)?\b|^\s*(?:at |\d+: )|^Execution halted",
    re.IGNORECASE,
).search
_COMPILER = re.compile(r"([^\s:()]+)(?::(\d+):\d+|\((\d+)\)): (?:fatal )?error: (.+)").match
_END_LINES = 40
_RACES = 66  # the code of a Go program in which races were found
_SHELL_LINES = 5
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


def errors(lines: list[str], code: int, workdir: str = "") -> list[OutputError]:
    """All that looks as if it ended the program, in the order of the output."""
    text = "\n".join(lines)
    there = [(needles, read) for needles, read in _READERS if any(needle in text for needle in needles)]
    found = []
    for k, line in enumerate(lines if there else ()):
        for needles, read in there:
            if any(needle in line for needle in needles) and (one := read(lines, k, workdir)) is not None:
                found.append(one)
                break
    if code == _RACES and (race := languages.go_race(lines, workdir)) is not None:
        found.append(race)
    near_end = range(max(len(lines) - _END_LINES, 0), len(lines))
    found += [one for k in near_end if (one := _shell(lines, k, code)) is not None]
    return found


def device_assert(lines: list[str]) -> str:
    """What the first assertion on a GPU asked for; empty where none failed."""
    for line in lines:
        if "Assertion" in line and (found := _DEVICE_ASSERT(line)) is not None:
            return found[1]
    return ""


def last_line(lines: list[str], *, any_line: bool) -> OutputError | None:
    """The last line that speaks of an error; with ``any_line`` else the last one."""
    start = max(len(lines) - _END_LINES, 0)
    for k in range(len(lines) - 1, start - 1, -1):
        if _WORDS(lines[k]) and not _NOISE(lines[k]):
            return OutputError(k, message_of(lines[k]), "", "line", _kind_of_line(lines[k]))
    for k in range(len(lines) - 1, start - 1, -1) if any_line else ():
        if lines[k].strip() and not _NOISE(lines[k]) and any(c.isalpha() for c in lines[k]):
            return OutputError(k, message_of(lines[k]), "", "line", _kind_of_line(lines[k]))
    return None


def _kind_of_line(line: str) -> Kind:
    kind = kind_of(line)
    return "unknown" if kind == "code" else kind


# -- readers: lines and the number of one that has a needle ----------------------------------------


def _thrown(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    found = _THROWN(lines[k])
    if found is None:
        return OutputError(k, lines[k][lines[k].find("terminate called") :])
    said = next((m[1] for line in lines[k + 1 : k + 4] if (m := _WHAT(line)) is not None), "")
    name = found[1]
    if not said and name[:1].islower() and "::" not in name:
        name = f"C++ exception of type {name}"
    return OutputError(k, f"{name}: {said}" if said and said != name else name)


def _libcpp(lines: list[str], k: int, _workdir: str) -> OutputError:
    _, _, said = lines[k].partition("uncaught exception of type ")
    return OutputError(k, said or lines[k])


def _glibc(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    starts = lines[k].lstrip()
    return OutputError(k, starts, kind="code") if starts.startswith(_GLIBC) else None


def _assertion(lines: list[str], k: int, workdir: str) -> OutputError | None:
    before, _, said = lines[k].partition("Assertion `")
    place = _PLACE(before)
    if place is None or not said.rstrip(".").endswith("' failed") or "block: [" in before:
        return None
    where = f"{file_name(place[1], workdir)}:{place[2]}"
    return OutputError(k, f"Assertion `{said.rstrip('.')}", where, kind="code")


def _check_failed(lines: list[str], k: int, workdir: str) -> OutputError | None:
    found = _CHECKED(lines[k])
    return None if found is None else OutputError(k, found[3], f"{file_name(found[1], workdir)}:{found[2]}")


def _sanitizer(lines: list[str], k: int, workdir: str) -> OutputError | None:
    """A report of AddressSanitizer or one of its kind, and the first line of it that is not of a run time."""
    if k >= len(lines) - _END_LINES and (plain := _UNDEFINED(lines[k])) is not None:
        return OutputError(k, plain[3], f"{file_name(plain[1], workdir)}:{plain[2]}", kind="code")
    found = _SANITIZER(lines[k])
    if found is None:
        return None
    frames = [m for line in lines[k + 1 : k + 60] if (m := _SANITIZER_FRAME(line)) is not None]
    own = next((m for m in frames if not _RUN_TIME(m[1])), None)
    where = f"{file_name(own[1], workdir)}:{own[2]}" if own is not None else ""
    return OutputError(k, f"{found[1]}: {found[2]}", where, kind="code")


def _compiler(lines: list[str], k: int, workdir: str) -> OutputError | None:
    """An error of a compiler, where the program ended soon after it."""
    found = _COMPILER(lines[k]) if k >= len(lines) - _END_LINES else None
    if found is None:
        return None
    return OutputError(
        k, f"error: {found[4]}", f"{file_name(found[1], workdir)}:{found[2] or found[3]}", kind="code"
    )


def _fatal_python(lines: list[str], k: int, workdir: str) -> OutputError:
    what = lines[k][lines[k].find("Fatal Python error:") :]
    frames: list[tuple[str, str]] = []
    current = False
    for line in lines[k + 1 : k + 400]:
        if "(most recent call first)" in line:
            if frames and current:
                break
            current, frames = line.startswith("Current thread"), []
        elif (frame := _FATAL_FRAME(line)) is not None:
            frames.append((frame[1], frame[2]))
        elif frames and current:
            break
    own = next((frame for frame in frames if not _LIBRARY(frame[0])), frames[0] if frames else None)
    where = f"{file_name(own[0], workdir)}:{own[1]}" if own is not None else ""
    return OutputError(k, what, where)


def _mpi(lines: list[str], k: int, _workdir: str) -> OutputError:
    after = (
        lines[k + 1]
        if k + 1 < len(lines) and lines[k + 1].startswith(("with errorcode", "exited on"))
        else ""
    )
    return OutputError(k, f"{lines[k]} {after}", kind="unknown")


def _root_cause(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    """torchrun's table, for a worker whose own output went elsewhere."""
    told = {m[1]: m[2].strip() for line in lines[k + 1 : k + 12] if (m := _TABLE(line)) is not None}
    rank, code, said = told.get("rank", ""), told.get("exitcode", ""), told.get("traceback", "")
    if not rank or not code:
        return None
    text = f"worker of rank {rank.split()[0]} exited {code.split()[0]}"
    if said and "To enable traceback" not in said and "Traceback (most" not in said:
        text += f": {said}"
    return OutputError(k, text, kind="unknown")


def _whole(lines: list[str], k: int, _workdir: str) -> OutputError:
    return OutputError(k, lines[k])


def _cuda(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    found = _CUDA(lines[k])
    return None if found is None else OutputError(k, found[0])


def _nccl(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    found = _NCCL(lines[k])
    return None if found is None else OutputError(k, found[0], sort="line", kind="network")


def _no_program(lines: list[str], k: int, _workdir: str) -> OutputError | None:
    if (found := _NO_MODULE(lines[k])) is not None:
        return OutputError(k, found[1], sort="import", kind="code")
    return (
        OutputError(k, lines[k], sort="command", kind="code") if _NO_PROGRAM(lines[k]) is not None else None
    )


_READERS: tuple[tuple[tuple[str, ...], Reader], ...] = (
    (("terminate called",), _thrown),
    (("terminating due to uncaught exception", "terminating with uncaught exception"), _libcpp),
    (_GLIBC, _glibc),
    (("Assertion",), _assertion),
    (("Check failed",), _check_failed),
    (("Fatal Python error:",), _fatal_python),
    (("panic: ", "fatal error: "), languages.go),
    (("panicked at ",), languages.rust),
    (("memory allocation of ", "JavaScript heap out of memory", "java.lang.OutOfMemoryError"), _whole),
    (("Exception in thread ",), languages.java),
    (("Error", "Exception"), languages.node),
    (("ERROR: ",), languages.julia),
    ((" line ",), languages.perl),
    ((".rb:",), languages.ruby),
    (("Fatal error:",), languages.php),
    (("Unhandled exception. ",), languages.dotnet),
    (("Fortran runtime error",), languages.fortran),
    (("Execution halted",), languages.r),
    (("Sanitizer: ", ": runtime error: "), _sanitizer),
    ((": error: ",), usage.argparse),
    ((": error: ", ": fatal error: "), _compiler),
    (("Error: ", "ERROR: "), usage.click),
    (("─ Error ─",), usage.typer),
    (("FATAL Flags parsing error",), usage.absl),
    (("HYDRA_FULL_ERROR",), usage.hydra),
    (("Traceback (most recent call last)",), formatted.ipython),
    (('"exc_type"',), formatted.structured),
    ((_ROOT_CAUSE,), _root_cause),
    (("Traceback (most recent call last) ─",), formatted.rich),
    (("MPI_ABORT was invoked", "noticed that process rank"), _mpi),
    (("oom_kill event", "oom-kill event"), _whole),
    (("Unexpected bus error encountered in worker",), _whole),
    (("CUDA ", "CUDA_ERROR_", "cudaError"), _cuda),
    (("NCCL ", "ncclSystemError", "ncclInternalError"), _nccl),
)


def _shell(lines: list[str], k: int, code: int) -> OutputError | None:
    """The error that a shell, or an interpreter of a script, prints. A shell may have continued after it."""
    line = lines[k]
    if ": " not in line:
        return None
    if (one := _no_program(lines, k, "")) is not None:
        return one if code in (1, 2, 126, 127) else None
    if (killed := _SHELL_KILLED(line)) is not None:
        what = f"{killed[3]}: {killed[4].strip()}" if killed[4].strip() else killed[3]
        kinds = {"Killed": "unknown", "Terminated": "unknown", "Bus error": "memory"}
        return OutputError(k, what, _script(killed[1], killed[2]), kind=kinds.get(killed[3], "code"))  # type: ignore[arg-type]
    found = _SHELL(line)
    if found is None or _SHELL_SAYS(found[3]) is None:
        return None
    if code not in (126, 127) and k < len(lines) - _SHELL_LINES:
        return None
    said = found[3]
    missing = code in (126, 127) and said.endswith(
        ("not found", "Permission denied", "No such file or directory", "bad interpreter")
    )
    sort = (
        "command" if missing else "syntax" if "yntax error" in said or "unexpected EOF" in said else "error"
    )
    kind = "data" if said.endswith("No such file or directory") and sort == "error" else None
    return OutputError(k, said, _script(found[1], found[2]), sort, kind)  # type: ignore[arg-type]


def _script(name: str, number: str) -> str:
    """``train.sh:3``; ``line 3`` of a command that the shell was given as text."""
    last = file_name(name)
    return f"line {number}" if last in ("bash", "sh", "dash", "zsh", "ksh") else f"{last}:{number}"


def message_of(line: str) -> str:
    """The line without a logger's prefix; the whole line where nothing would be left."""
    found = _PREFIX(line)
    rest = "" if found is None else line[found.end() :].strip()
    return rest or line
