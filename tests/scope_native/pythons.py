"""Interpreters besides our own, shared and static builds: those that the set-up has fetched, and the system's."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".cache" / "pythons"
RECORDED = ROOT / "native" / "tests" / "golden"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """``command`` starts it; a program is given to it by ``-c``."""

    version: str
    build: str
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.version}-{self.build}"


@cache
def interpreters() -> tuple[Interpreter, ...]:
    """All that start here. A folder of `.cache/pythons` holds a prefix, or a whole system to change root to."""
    commands = [("/usr/bin/python3",)]
    for folder in sorted(FETCHED.glob("*")):
        if (folder / "usr/bin/python3").exists():
            commands.append(("chroot", str(folder), "/usr/bin/python3"))
        else:
            variables = (f"LD_LIBRARY_PATH={folder}", f"PYTHONHOME={folder}")
            programs = sorted(folder.glob("bin/python3.[0-9]*[0-9]"))
            commands.extend(("env", *variables, str(program)) for program in programs)
    return tuple(found for command in commands if (found := _asked(command)))


def _asked(command: tuple[str, ...]) -> Interpreter | None:
    """What an interpreter says of itself."""
    source = (
        "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_ENABLE_SHARED') or 0, "
        "next((l for l in open('/proc/self/maps') if 'libpython' in l), ''))"
    )
    try:
        ran = subprocess.run([*command, "-S", "-c", source], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.match(r"3 (\d+) \d (.*)", ran.stdout)
    if ran.returncode or not said or f"3.{said[1]}" not in VERSIONS:
        return None
    return Interpreter(f"3.{said[1]}", "shared" if said[2].strip() else "static", command)


def recorded(version: str) -> list[Path]:
    """What stands for a version that cannot be had here: stacks of recorded samples."""
    return sorted(RECORDED.glob(f"python_{version.replace('.', '_')}*.txt"))


def environment() -> dict[str, str]:
    """Of a process that is no part of ours: without our paths."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
