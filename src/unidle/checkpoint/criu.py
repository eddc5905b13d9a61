"""CRIU and cuda-checkpoint: freeze a process tree into files and thaw it again, where kernel and permissions allow it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Final

from unidle import private
from unidle.errors import BadInput, CannotRun

_SECONDS: Final = 600.0
_RECORD_MOST_BYTES: Final = 1 << 20
_PID_MOST: Final = 1 << 22  # the kernel's limit


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether process trees can be frozen here, and if not, why; ``cuda``: the path of cuda-checkpoint, if any."""

    works: bool
    because: str
    criu: str | None
    cuda: str | None


def ability() -> Ability:
    """What this machine can do, tried with a process of its own: some kernels pass CRIU's checks and fail later."""
    criu, cuda = shutil.which("criu") or _in_sbin("criu"), shutil.which("cuda-checkpoint")
    if criu is None:
        return Ability(False, "criu is not installed (Debian: apt-get install criu)", None, cuda)
    if os.geteuid() != 0 and not _may(criu):
        return Ability(False, "criu needs root or CAP_CHECKPOINT_RESTORE", criu, cuda)
    done = _run([criu, "check"])
    if done.returncode:
        return Ability(
            False, f"criu does not work on kernel {os.uname().release}: {_reason(done.stderr)}", criu, cuda
        )
    problem = _trial(criu)
    if problem:
        return Ability(False, f"criu could not freeze and thaw a trial process: {problem}", criu, cuda)
    return Ability(True, "criu froze and thawed a trial process", criu, cuda)


def dump(pid: int, directory: str, *, leave_running: bool = False) -> None:
    """Freeze the process tree of ``pid`` into ``directory``. With GPUs its CUDA state is moved to the host first.

    ``directory`` appears when the dump is whole. Raises BadInput, CannotRun.
    """
    if os.path.exists(directory):
        raise BadInput("exists already", field="DIRECTORY", value=directory, remedy="name a new one")
    if not os.path.exists(f"/proc/{pid}"):
        raise BadInput("no such process", field="PID", value=pid, remedy="name a running process")
    can = _needed()
    holders = [child for child in tree(pid) if _uses_gpu(child)]
    if holders and can.cuda is None:
        raise CannotRun(
            "the process holds a GPU and cuda-checkpoint is not installed", field="PID", value=pid,
            remedy="install cuda-checkpoint (driver 550 or newer)",
        )  # fmt: skip
    draft_name = f"{directory}.tmp"
    os.makedirs(draft_name)
    moved: list[int] = []
    try:
        for holder in holders:
            _toggle(str(can.cuda), holder)
            moved.append(holder)
        done = _run(_dump_command(str(can.criu), pid, draft_name, leave_running=leave_running))
        if done.returncode:
            raise CannotRun(f"criu could not freeze it: {_reason(done.stderr)}", field="PID", value=pid)
        with open(os.path.join(draft_name, "unidle.json"), "w", encoding="utf-8") as file:
            json.dump({"pid": pid, "cuda": holders}, file)
        os.rename(draft_name, directory)
    except BaseException:
        shutil.rmtree(draft_name, ignore_errors=True)
        for holder in moved:
            _run([str(can.cuda), "--toggle", "--pid", str(holder)])
        raise
    for holder in moved if leave_running else ():
        _toggle(str(can.cuda), holder)


def _dump_command(criu: str, pid: int, directory: str, *, leave_running: bool) -> list[str]:
    keep = ["--leave-running"] if leave_running else []
    return [
        criu, "dump", "-t", str(pid), "-D", directory, "--shell-job", "--tcp-established", "--file-locks", *keep,
    ]  # fmt: skip


def restore(directory: str) -> int:
    """Thaw the process tree of ``directory``; returns its first process id, the same as before. Raises BadInput, CannotRun."""
    try:
        with private.folder(directory) as place:
            told = json.loads(private.read("unidle.json", place, _RECORD_MOST_BYTES))
        pid: int = told["pid"]
        holders: list[int] = told["cuda"]
        if any(type(p) is not int or not 0 < p < _PID_MOST for p in (pid, *holders)):
            raise ValueError
    except PermissionError as error:
        raise BadInput(
            f"is not safe to restore: {error.strerror}", field="DIRECTORY", value=directory,
            remedy="name a directory that this user wrote with `unidle checkpoint freeze`",
        ) from None  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(
            "is not a complete dump",
            field="DIRECTORY",
            value=directory,
            remedy="name a directory that `unidle checkpoint freeze` wrote",
        ) from None
    can = _needed()
    if os.path.exists(f"/proc/{pid}"):
        raise CannotRun("its process id is in use", field="PID", value=pid, remedy="end that process first")
    done = _run(
        [str(can.criu), "restore", "-D", directory, "--shell-job", "--tcp-established", "--file-locks", "-d"]
    )
    if done.returncode:
        raise CannotRun(f"criu could not thaw it: {_reason(done.stderr)}", field="DIRECTORY", value=directory)
    for holder in holders:
        _toggle(str(can.cuda), holder)
    return pid


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        for task in _listed(f"/proc/{parent}/task"):
            try:
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
            except OSError:
                continue
    return found


def _needed() -> Ability:
    can = ability()
    if not can.works:
        raise CannotRun(can.because, field="criu", remedy="use checkpoints of the training script instead")
    return can


def _trial(criu: str) -> str:
    """Freeze and thaw a small process; empty where it works, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="unidle-criu-") as place:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(0.1)"], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        try:
            done = _run([criu, "dump", "-t", str(process.pid), "-D", place])
            if done.returncode:
                return _reason(done.stderr)
            process.wait()
            done = _run([criu, "restore", "-D", place, "-d"])
            if done.returncode:
                return _reason(done.stderr)
            os.kill(process.pid, 9)
        finally:
            process.kill()
            process.wait()
    return ""


def _toggle(cuda: str, pid: int) -> None:
    done = _run([cuda, "--toggle", "--pid", str(pid)])
    if done.returncode:
        raise CannotRun(f"cuda-checkpoint failed: {_reason(done.stderr)}", field="PID", value=pid)


def _uses_gpu(pid: int) -> bool:
    for fd in _listed(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


def _may(criu: str) -> bool:
    """Whether the binary itself has the capability that root would."""
    getcap = shutil.which("getcap") or _in_sbin("getcap")
    return getcap is not None and "cap_checkpoint_restore" in _run([getcap, criu]).stdout


def _in_sbin(name: str) -> str | None:
    return shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {_SECONDS:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 126, "", error.strerror or str(error))


def _reason(text: str) -> str:
    """The first error in CRIU's output: later ones follow from it."""
    found = re.findall(r"^(?:\(\S+\)\s*)?Error \([^)]*\):\s*(.+)$", text, re.MULTILINE)
    useful = [line for line in found if not line.startswith("exited, status")]
    lines = text.strip().splitlines()
    return (useful or found or lines or ["it gave no reason"])[0].strip()
