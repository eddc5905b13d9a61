"""One error in the output, and the kind of failure that an error message means."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Sort = Literal["error", "import", "syntax", "command", "line"]
    """An error; one that no restart fixes: an import, the syntax, a missing program or script; just a line."""
    Kind = Literal["code", "data", "memory", "machine", "network", "unknown"]

WHAT_CHARACTERS = 400


class OutputError:
    """One error in the output. ``at``: the number of its line; ``tag``: the prefix of each of its lines.

    ``symptom``: it reports that something else failed before, such as a peer. ``closes``: its details are above its
    line, as in a traceback, and not below it.
    """

    __slots__ = ("at", "closes", "kind", "sort", "symptom", "tag", "what", "where")

    def __init__(
        self,
        at: int,
        what: str,
        where: str = "",
        sort: Sort = "error",
        kind: Kind | None = None,
        tag: str = "",
        *,
        closes: bool = False,
    ) -> None:
        self.at = at
        self.closes = closes
        self.what = shortened(what, WHAT_CHARACTERS)
        self.where = where
        self.sort = sort
        self.tag = tag
        self.symptom = _SYMPTOM(what) is not None
        self.kind: Kind = kind or kind_of(what)


def shortened(text: str, limit: int) -> str:
    """One line of at most ``limit`` characters, all of them printable."""
    text = " ".join(text.split()) if "\t" in text or "  " in text else text.strip()
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def file_name(path: str, workdir: str = "") -> str:
    """The name of a file for a reader: relative to ``workdir`` if it is below it; else, of an absolute path, the last part."""
    if workdir and path.startswith(f"{workdir.rstrip('/')}/"):
        return path[len(workdir.rstrip("/")) + 1 :]
    parts = [part for part in path.split("/") if part != "."]
    few = 2 if parts and parts[-1] in ("__init__.py", "__main__.py") else 1
    return "/".join(parts[-few:]) if path.startswith("/") else "/".join(parts)


_SYMPTOM = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|connection refused|socket closed|connection lost"
    r"|remote process exited|ncclremoteerror|remote error|got 0 bytes|recvvalue failed|sendbytes failed"
    r"|caused pair closure|timed out waiting \d+ ?ms|seconds waiting for clients|collective operation timeout"
    r"|communicator (?:was|is) aborted|wait timeout|socket timeout|got signal: 15|sigterm|signal 15\b"
    r"|one or more processes exited|peer (?:has )?(?:disconnected|closed|exited)|client socket has (?:failed|timed out)"
    r"|exceptions? occurred on other ranks|transport retry count exceeded|endpoint is closed|stopped by peer",
    re.IGNORECASE,
).search

_MEMORY = re.compile(
    r"\bMemoryError\b|OutOfMemory|out of memory|(?:cannot|can't|unable to) allocate|bad_alloc|not enough memory"
    r"|insufficient shared memory|out of shared memory|Java heap space|memory allocation of|RESOURCE_EXHAUSTED|oom[-_]kill|\bBus error",
    re.IGNORECASE,
).search
_MACHINE = re.compile(
    r"\bECC\b|no space left on device|quota exceeded|read-only file system|input/output error|stale file handle"
    r"|no cuda-capable device|no cuda gpus are available|cuda driver|driver/library version mismatch"
    r"|fallen off the bus|hardware error|devices are busy|too many open files|resource temporarily unavailable"
    r"|can't start new thread|illegal instruction|unspecified launch failure|cuda error: unknown error"
    r"|transport endpoint is not connected|cuda initialization|nvlink",
    re.IGNORECASE,
).search
_NETWORK = re.compile(
    r"^(?:[\w.]*\.)?(?:Connection\w*Error|gaierror|URLError|HTTPError|SSLError|\w*TimeoutError|ConnectTimeout|ReadTimeout"
    r"|DistBackendError|DistNetworkError|DistStoreError|RendezvousConnectionError|RendezvousTimeoutError|NewConnectionError"
    r"|LocalEntryNotFoundError|OfflineModeIsEnabled)\b"
    r"|name or service not known|temporary failure in name resolution|network is unreachable|no route to host"
    r"|nccl (?:error|failure|warn)|ncclsystemerror|ncclinternalerror|address already in use|max retries exceeded",
    re.IGNORECASE,
).search
_DATA = re.compile(
    r"^(?:[\w.]*\.)?(?:FileNotFoundError|IsADirectoryError|NotADirectoryError|PermissionError|UnicodeDecodeError|JSONDecodeError"
    r"|BadZipFile|BadGzipFile|ReadError|UnidentifiedImageError|UnpicklingError|ArrowInvalid|EOFError|ParserError|EmptyDataError"
    r"|SafetensorError|LibsndfileError|DatasetNotFoundError|DatasetGenerationError|DataFilesNotFoundError|LZMAError)\b"
    r"|file truncated|image file is truncated|corrupt(?:ed)? (?:file|data|record|shard|image)|unable to (?:synchronously )?open (?:file|object)",
).search
_OWN = re.compile(
    r"ncclInvalid(?:Usage|Argument)|invalid usage|duplicate gpu detected|device-side assert", re.IGNORECASE
).search
_BUGS = re.compile(
    r"^(?:[\w.]*\.)?(?:NameError|UnboundLocalError|AttributeError|TypeError|ImportError|ModuleNotFoundError|SyntaxError"
    r"|IndentationError|TabError|NotImplementedError|AssertionError|RecursionError)\b"
).search


def kind_of(what: str, *, of_data: bool = False) -> Kind:
    """Which kind of failure a message is of. ``of_data``: it was raised where data is read."""
    if _MEMORY(what):
        return "memory"
    if _MACHINE(what):
        return "machine"
    if _OWN(what):
        return "code"
    if _SYMPTOM(what) or _NETWORK(what):
        return "network"
    if _DATA(what) or (of_data and not _BUGS(what)):
        return "data"
    by_others = what.startswith("KeyboardInterrupt") or "killed by signal: Killed" in what
    return "unknown" if by_others else "code"
