"""What a test session left behind on the machine.

Processes are known by a token in their environment, which every descendant inherits; mounts by
their place under the session's temporary directory; the rest by comparing before and after.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from unidle.engine.local.ranks.cgroups import own_hierarchies, remove_probes

TOKEN_VARIABLE = "UNIDLE_TEST_SESSION"
_OF_A_RUN_ROOT = re.compile("unidle-[0-9a-f]{8}")
# Helpers of Python's own multiprocessing live as long as their parent.
_HARMLESS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class Before:
    """The machine at the start of a session."""

    token: str
    checkout: Path
    cgroups: frozenset[Path]
    netns: frozenset[str]
    untracked: frozenset[str]


def look(checkout: Path) -> Before:
    """Mark this process, so that its descendants can be told, and note what is there already."""
    token = secrets.token_hex(8)
    os.environ[TOKEN_VARIABLE] = token
    return Before(token, checkout, _cgroups(), _netns(), _untracked(checkout))


def find(before: Before, scratch: Path) -> list[str]:
    """Describe each thing that is left; an empty list where nothing is."""
    return [*find_own(before, scratch), *find_of_machine(before)]


def find_own(before: Before, scratch: Path) -> list[str]:
    """The part that is known to be of this session, whatever runs next to it."""
    return [
        *(f"process {pid}: {command}" for pid, command in processes(before.token)),
        *(f"mount {place}" for place in _mounts_below(scratch)),
    ]


def find_of_machine(before: Before) -> list[str]:
    """The part that is found by comparison. While another session runs, the group of a run root may be of either."""
    for path in _cgroups() - before.cgroups:
        remove_probes(
            str(path)
        )  # of controllers that tests kill at any moment; the next start of the same would do so
    groups = sorted(_cgroups() - before.cgroups)
    if groups and _other_sessions(before):
        groups = [path for path in groups if not _OF_A_RUN_ROOT.fullmatch(path.name)]
    return [
        *(f"control group {path}" for path in groups if not _foreign(path, before)),
        *(
            f"network namespace {name}"
            for name in sorted(_netns() - before.netns)
            if not _of_others(name, before)
        ),
        *(f"file in the checkout: {name}" for name in sorted(_untracked(before.checkout) - before.untracked)),
    ]


def processes(token: str) -> list[tuple[int, str]]:
    """Living processes that inherited ``token``, this one and its ancestors excepted."""
    mine = {os.getpid(), *_ancestors()}
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in mine:
            continue
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            if wanted not in environ:
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").strip()
        except OSError:  # gone meanwhile, or another user's
            continue
        if not any(harmless in command for harmless in _HARMLESS):
            found.append((int(entry.name), command.decode(errors="replace")[:200] + _started_by(environ)))
    return sorted(found)


def _started_by(environ: list[bytes]) -> str:
    """The test that started a process: pytest names it in the environment, which descendants inherit."""
    prefix = b"PYTEST_CURRENT_TEST="
    name = next((line.removeprefix(prefix) for line in environ if line.startswith(prefix)), b"")
    return f" (started by {name.decode(errors='replace').rpartition(' ')[0]})" if name else ""


def clear(before: Before, scratch: Path) -> None:
    """End processes and undo mounts that are left, so that one failed session does not disturb the next."""
    for pid, _ in processes(before.token):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for place in _mounts_below(scratch):
        subprocess.run(["umount", "--lazy", place], capture_output=True)


def _ancestors() -> set[int]:
    pids, pid = set(), os.getppid()
    while pid > 1:
        pids.add(pid)
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return pids


def _cgroups() -> frozenset[Path]:
    """Groups at the top of each hierarchy, and in the places where processes of this session can make some."""
    top = Path("/sys/fs/cgroup")
    tops = {top, *(p for p in top.iterdir() if p.is_dir())} if top.is_dir() else set()
    tops |= {Path(place) for places in own_hierarchies().values() for place in places}
    found: set[Path] = set()
    for t in tops:
        with contextlib.suppress(FileNotFoundError):  # another's group, gone meanwhile
            found.update(path for path in t.glob("unidle*") if path.is_dir())
    return frozenset(found)


def _other_sessions(before: Before) -> bool:
    """Whether another pytest runs that is neither above this process nor started by it."""
    mine = {os.getpid(), *_ancestors(), *(pid for pid, _ in processes(before.token))}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in mine:
            with contextlib.suppress(OSError):
                if b"pytest" in (entry / "cmdline").read_bytes():
                    return True
    return False


def _foreign(group: Path, before: Before) -> bool:
    """Whether the group is in use by processes that are not of this session."""
    for below, _, files in os.walk(group):  # passes over what vanishes meanwhile; rglob raises
        try:
            pids = (Path(below) / "cgroup.procs").read_text().split() if "cgroup.procs" in files else []
        except OSError:
            continue
        ours = {pid for pid, _ in processes(before.token)}
        if any(int(pid) not in ours for pid in pids):
            return True
    return False


def _netns() -> frozenset[str]:
    place = Path("/run/netns")
    return frozenset(entry.name for entry in place.iterdir()) if place.is_dir() else frozenset()


def _of_others(name: str, before: Before) -> bool:
    """Whether a process that is not of this session made the namespace, and lives: its number is in the name."""
    made_by = re.match(r"(?:ud|hf)(\d+)-", name)  # of labs, and of tests.host_faults
    if made_by is None or int(made_by[1]) == os.getpid():
        return False
    place = Path("/proc", made_by[1])
    try:
        return f"{TOKEN_VARIABLE}={before.token}".encode() not in (place / "environ").read_bytes().split(
            b"\0"
        )
    except OSError:  # it is gone, and left this behind
        return False


def _mounts_below(scratch: Path) -> list[str]:
    """Mount points below ``scratch``, the deepest first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    places = (line.split()[1].replace("\\040", " ") for line in lines)
    return sorted((place for place in places if Path(place).is_relative_to(scratch)), reverse=True)


def _untracked(checkout: Path) -> frozenset[str]:
    try:
        listed = subprocess.run(
            ["git", "-C", str(checkout), "ls-files", "--others", "--exclude-standard", "-z"],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:  # no git on this machine: nothing to compare
        return frozenset()
    return frozenset(filter(None, listed.stdout.split("\0")))
