"""Where the benchmarks find other profilers: in ``$UNIDLE_PEERS``, in an environment of their own, or on the PATH.

The environment is made of ``bench/peers.txt`` on first use, in ``.cache/peers/``, by uv; where no package registry is reached, a line
on standard error says so, and the benchmarks' rows say which peer was not there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("peers.txt")
MAKE_LIMIT_S = 240
_OF_LIST = ("py-spy", "austin", "memray", "torchfix")


@cache
def program(name: str) -> str | None:
    """A peer's program that answers to ``--version``; nothing where there is none, which is reported on standard error."""
    path = _found(name)
    if path is None:
        print(f"{name} is not here: skipped", file=sys.stderr)
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    if done.returncode != 0:
        print(
            f"{name} does not start: skipped: {(done.stderr or done.stdout).strip()[:200]}", file=sys.stderr
        )
        return None
    return path


def _found(name: str) -> str | None:
    if place := os.environ.get("UNIDLE_PEERS"):
        return shutil.which(name, path=place)
    own = _environment() if name in _OF_LIST else None
    return (shutil.which(name, path=str(own)) if own else None) or shutil.which(name)


@cache
def _environment() -> Path | None:
    """The directory of the programs; it is made where it is missing."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stale = hashlib.sha256(f"{version} {sys.prefix}\n{LIST.read_text()}".encode()).hexdigest()[:12]
    place = ROOT / ".cache" / "peers" / stale
    if place.exists():
        return place / "bin"
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="new-", dir=place.parent) as fresh:
        made = Path(fresh) / "env"
        why = _make(made)
        if why is None:
            made.rename(place)  # whole or not at all
            return place / "bin"
    print(f"the other profilers cannot be installed: {why}", file=sys.stderr)
    return None


def _make(place: Path) -> str | None:
    """Make it; the reason where that fails."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        return "uv is not here (make setup installs it)"
    print("installing other profilers (bench/peers.txt)", file=sys.stderr)
    python = place / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(place)],
        [uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(LIST)],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"not done within {MAKE_LIMIT_S} s: {' '.join(command[1:3])}"
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["uv failed"])[-1][:200]
    # memray runs a script inside its own interpreter: that finds this one's PyTorch.
    packages = next((place / "lib").glob("python*/site-packages"))
    (packages / "unidle-bench.pth").write_text(sysconfig.get_paths()["platlib"] + "\n")
    return None
