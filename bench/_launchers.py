"""Other launchers that restart gangs, compared with which ours is timed: torchrun and NVIDIA's ft_launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _process import TORCHRUN, descendants, environment, started, until

ROOT: Final = Path(__file__).resolve().parent.parent
_NVRX: Final = (
    "nvidia-resiliency-ext==0.4.1",
    "defusedxml",
    "nvidia-ml-py",
    "packaging",
    "psutil",
    "pynvml",
    "pyyaml",
)
_LINES_S: Final = 0.3  # those on their way when a rank is killed


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a gang is started: ``command`` takes the number of ranks, then the script and its arguments follow."""

    name: str
    command: Callable[[int], Sequence[str]]
    env: dict[str, str]


def torchrun() -> Launcher:
    return Launcher("torchrun --max-restarts", lambda ranks: _torchrun(TORCHRUN, ranks), {})


def torchrun_own_store() -> Launcher:
    """With the setting that keeps attempts from reading each other's addresses."""
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    return Launcher(f"torchrun, {name}=1", lambda ranks: _torchrun(TORCHRUN, ranks), {name: "1"})


def ft_launcher(place: Path = ROOT / ".cache" / "bench" / "nvrx") -> Launcher | None:
    """ft_launcher on this environment's PyTorch, put into ``place`` from the package index; None where that fails."""
    uv = Path(sys.executable).with_name("uv")
    if not (place / "nvidia_resiliency_ext").is_dir():
        done = subprocess.run(
            [
                uv,
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--python",
                sys.executable,
                "--target",
                place,
                *_NVRX,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            print(f"ft_launcher cannot be installed: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(place)]))
    words = (sys.executable, "-m", "nvidia_resiliency_ext.fault_tolerance.launcher")
    heard = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
    return Launcher(
        "nvrx ft_launcher", lambda ranks: _torchrun((*words, *heard), ranks), {"PYTHONPATH": path}
    )


def _torchrun(words: Sequence[str], ranks: int) -> Sequence[str]:
    return (*words, f"--nproc-per-node={ranks}", "--max-restarts=3")


def kill_to_step_s(
    launcher: Launcher, job: Sequence[str], ranks: int, after: int, limit_s: float
) -> float | None:
    """From the kill of the last rank, ``after`` steps into the run, to the next step; None where none came.

    ``job`` is a script that prints a line ``step N`` a step, and its arguments; it runs in a new directory.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        env = environment(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1", UNIDLE_HOLD_DIR=name, **launcher.env)
        with started([*launcher.command(ranks), *job], place, env) as process:
            out = place / "out"

            def lines() -> int:
                return out.read_text(errors="replace").count("step ")

            if not until(lambda: lines() >= after or process.poll() is not None, limit_s) or lines() < after:
                print(f"{launcher.name}: no {after} steps: {_last_line(place / 'err')}", file=sys.stderr)
                return None
            script = os.fsencode(job[0])
            mine = [pid for pid, _ in descendants(process.pid) if script in _words(pid)]
            os.kill(mine[-1], signal.SIGKILL)
            begun = time.monotonic()
            time.sleep(_LINES_S)
            before = lines()
            came = until(lambda: lines() > before or process.poll() is not None, limit_s)
            return time.monotonic() - begun if came and lines() > before else None


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no error was printed"
