"""Machines with GPUs that are played: a real libnvidia-ml.so.1, built here, that answers from a text file.

The programs under test are processes of their own: a library stays loaded, and tests without a GPU share this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE / "played.c"
MACHINES = HERE / "machines"
TIMEOUT_S = 60


def build(into: Path, *options: str) -> Path:
    """The folder with the library; ``-DOLD_DRIVER`` leaves out what driver 450 did not have."""
    into.mkdir(parents=True, exist_ok=True)
    library = into / "libnvidia-ml.so.1"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run([*command, *options, "-o", library, SOURCE], check=True)
    return into


@dataclass
class Played:
    """One machine; what is written after its file's lines takes precedence."""

    library: Path
    file: Path
    more: dict[str, str] = field(default_factory=dict)
    """Variables of what runs on it."""

    def write(self, *lines: str) -> None:
        """From now on the machine answers so, too; a program that runs sees it at its next call."""
        new = self.file.with_suffix(".new")
        new.write_text(self.file.read_text() + "\n".join(lines) + "\n")
        new.rename(self.file)

    @property
    def environ(self) -> dict[str, str]:
        played = {"LD_LIBRARY_PATH": str(self.library), "UNIDLE_PLAYED_NVML": str(self.file)}
        return os.environ | played | {"XDG_DATA_HOME": str(self.file.parent / "data")} | self.more

    def run(self, *command: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
            cwd=self.file.parent,
        )  # fmt: skip
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    def unidle(self, *arguments: str, code: int | None = 0) -> str:
        return self.run(sys.executable, "-m", "unidle", *arguments, code=code).stdout

    def checks(self, *only: str, code: int | None = 0, timeout: str = "30") -> dict[str, Any]:
        """``unidle check``: what it found, by name."""
        arguments = ["check", "--json", "--only", ",".join(only), "--timeout", timeout]
        return {one["name"]: one for one in json.loads(self.unidle(*arguments, code=code))["checks"]}

    def python(self, function: Callable[[], Any]) -> Any:
        """What a function of a test module returns in a Python that sees this machine."""
        module = function.__module__.removeprefix("tests.")
        source = f"import json\nfrom {module} import {function.__name__} as it\nprint(json.dumps(it()))"
        self.more.setdefault("PYTHONPATH", str(HERE.parent))
        return json.loads(self.run(sys.executable, "-c", source).stdout.splitlines()[-1])


def machine(name: str, library: Path, place: Path, *lines: str) -> Played:
    """One of ``machines/``, in a file of its own."""
    file = place / "machine.nvml"
    text = (MACHINES / f"{name}.nvml").read_text()
    for line in [line for line in text.splitlines() if line.startswith("include ")]:
        text = text.replace(line, (MACHINES / line.removeprefix("include ")).read_text())
    file.write_text("\n".join([text, *lines, ""]))
    return Played(library, file)
