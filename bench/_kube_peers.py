"""Other clients of Kubernetes, in an environment of their own: ``.cache/peers/kube``, made by uv on first use."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kubernetes==37.0.2", "lightkube==1.0.1", "lightkube-models==1.37.0.8")
PEERS = ("kubernetes", "lightkube")
_LIMIT_S = 240


class Peers:
    """Runs tasks of ``_kube_peer.py``. Where the packages cannot be had, a line on standard error says so, once."""

    def __init__(self) -> None:
        self._python = _python()

    def seconds(self, task: str, *arguments: object) -> float:
        """How long the peer took. Errors: ValueError where it is not there or failed."""
        if self._python is None:
            raise ValueError("no peers")
        script = Path(__file__).with_name("_kube_peer.py")
        command = [str(self._python), str(script), task, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            print(f"{task} failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
            raise ValueError(task)
        return float(done.stdout)


def _python() -> Path | None:
    place = ROOT / ".cache" / "peers" / f"kube-{'-'.join(PACKAGES)}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="new-", dir=place.parent) as fresh:
            made = Path(fresh) / "env"
            if (why := _make(made)) is not None:
                print(f"other clients of Kubernetes cannot be installed: {why}", file=sys.stderr)
                return None
            made.rename(place)  # whole or not at all
    return place / "bin" / "python"


def _make(place: Path) -> str | None:
    """Make the environment; the reason where that fails."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        return "uv is not here (make setup installs it)"
    for command in (
        [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(place)],
        [uv, "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *PACKAGES],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"not done within {_LIMIT_S} s"
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["uv failed"])[-1][:200]
    return None
