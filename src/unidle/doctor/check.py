"""The result of looking at one thing, and small readers that never fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unidle.probe.mount_table import unescaped

State = Literal["ok", "missing", "limited"]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing that unidle can use: ``remedy`` is empty where nothing needs to be done."""

    name: str
    state: State
    detail: str
    needed_for: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class MountedFileSystem:
    """One line of the kernel's table of mounts."""

    path: str
    kind: str
    options: tuple[str, ...]


def read(path: Path) -> str | None:
    """The text of a small file without surrounding blanks; None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def mounts(root: Path) -> list[MountedFileSystem]:
    """The mounts of this process, in order; a later one hides an earlier one on the same path."""
    found = []
    for line in (read(root / "proc/self/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) >= 4:
            found.append(MountedFileSystem(unescaped(fields[1]), fields[2], tuple(fields[3].split(","))))
    return found


def on_path(name: str, environ: Mapping[str, str], more: Iterable[Path] = ()) -> Path | None:
    """The program ``name`` on the search path, else in one of the directories ``more``."""
    import shutil

    found = shutil.which(name, path=environ.get("PATH", ""))
    if found:
        return Path(found)
    return next((d / name for d in more if shutil.which(str(d / name))), None)
