"""What this machine has to offer: programs, rights, kernel features. Each that is missing is one clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from unidle.errors import CannotRun

PROGRAMS: Final = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "runc": "runc",
}
"""What ``up`` runs, and the package of Debian that has it."""
CNI_FOLDERS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
_CNI_PLUGINS: Final = ("bridge", "host-local", "loopback")


def check() -> None:
    """Errors: CannotRun for the first thing that is missing."""
    check_root()
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise CannotRun(
                f"{program} is not on PATH", remedy=f"make kube-assets, or: apt-get install {package}"
            )
    cni_folder()
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise CannotRun("the kernel has no overlayfs", remedy="load the module: modprobe overlay")


def check_root() -> None:
    if os.geteuid() != 0:
        raise CannotRun(
            "a cluster needs root: it makes namespaces, control groups and a bridge",
            remedy="run it as root: sudo scripts/kube",
        )


def cni_folder() -> Path:
    """The directory with the plugins of the container network interface."""
    for folder in CNI_FOLDERS:
        if all(os.access(folder / plugin, os.X_OK) for plugin in _CNI_PLUGINS):
            return folder
    raise CannotRun(
        f"no {', '.join(_CNI_PLUGINS)} in {', '.join(map(str, CNI_FOLDERS))}",
        remedy="make kube-assets, or: apt-get install containernetworking-plugins",
    )


def run(*words: str, text: str = "") -> str:
    """The output of a command. Errors: CannotRun with what it wrote on standard error."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        raise CannotRun(f"{' '.join(words)}: {why}")
    return done.stdout
