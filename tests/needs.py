"""What this machine can do, and marks that skip a test where something is missing.

On a machine that has everything only GPU tests, and those of a Kubernetes cluster, may be skipped (see ``conftest.py``); so a
skip's reason says what is missing, and that of such a test starts with ``GPU`` or ``kube:``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def postgres_bin() -> Path | None:
    """The directory of the newest PostgreSQL server's programs, from version 15."""
    found = [
        (int(initdb.parts[-3]), initdb.parent)
        for initdb in Path("/usr/lib/postgresql").glob("*/bin/initdb")
        if initdb.parts[-3].isdigit() and int(initdb.parts[-3]) >= 15
    ]
    if found:
        return max(found)[1]
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path and shutil.which("postgres") else None


@cache
def chromium() -> str | None:
    """The path of a Chromium that can run headless."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


@cache
def cgroup_roots() -> tuple[Path, ...]:
    """Hierarchies in which this process may make control groups (tried, not guessed)."""
    top = Path("/sys/fs/cgroup")
    candidates = [top, *sorted(top.glob("*"))] if top.is_dir() else []
    return tuple(c for c in candidates if (c / "cgroup.procs").exists() and _can_make_group(c))


def _can_make_group(root: Path) -> bool:
    try:
        Path(tempfile.mkdtemp(prefix="probe-", dir=root)).rmdir()
    except OSError:
        return False
    return True


@cache
def gpus() -> int:
    """How many GPUs NVML finds; 0 where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    return count


@cache
def can_shape() -> bool:
    """Whether links between network namespaces can be made and slowed down (tried, not guessed)."""
    if not (is_root() and shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"upt{os.getpid() % 100_000}"
    ok = _quietly("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p")
    ok = ok and _quietly("tc", *f"qdisc add dev {name} root tbf rate 1mbit burst 32kb latency 50ms".split())
    _quietly("ip", "link", "del", name)
    return ok


def journald() -> Path | None:
    """systemd's journal daemon, where root may run one of its own in a mount namespace."""
    found = Path("/usr/lib/systemd/systemd-journald")
    return (
        found
        if is_root() and found.exists() and shutil.which("journalctl") and shutil.which("unshare")
        else None
    )


@cache
def has_slurm() -> bool:
    """Whether Slurm's daemons, its commands and MUNGE are installed."""
    return all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged")))


def _quietly(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@cache
def can_load_bpf() -> bool:
    """Whether the profiler's native part is there and the kernel takes its programs (tried, not guessed)."""
    try:
        import unidle_scope

        unidle_scope.Session([os.getpid()], hz=1, tier="T0").close()
    except (ImportError, OSError):
        return False
    return True


@cache
def kube_assets() -> bool:
    """Whether the programs of a Kubernetes cluster are built for this checkout."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
    try:
        from kube_cluster.assets import complete
    except ImportError:  # a checkout of tests alone
        return False
    return complete() is not None


def is_root() -> bool:
    return os.geteuid() == 0


def has_everything() -> bool:
    """Whether every test but GPU tests must run here. CI has to provide it all."""
    if os.environ.get("CI") == "true":
        return True
    programs = all(map(shutil.which, ("cargo", "clang", "llvm-strip", "npm", "node", "go")))
    found = postgres_bin() and chromium() and cgroup_roots() and can_shape() and journald()
    return is_root() and programs and can_load_bpf() and has_slurm() and bool(found)


root = pytest.mark.skipif(not is_root(), reason="needs root")
postgres = pytest.mark.skipif(
    postgres_bin() is None, reason="needs the PostgreSQL 15+ server (apt-get install postgresql)"
)
browser = pytest.mark.skipif(chromium() is None, reason="needs Chromium (apt-get install chromium)")
shaping = pytest.mark.skipif(
    not can_shape(), reason="needs network namespaces and tc (as root: apt-get install iproute2)"
)
time_namespaces = pytest.mark.skipif(
    not (is_root() and Path("/proc/self/ns/time").exists() and shutil.which("unshare")),
    reason="needs root, and a kernel with time namespaces",
)
journal = pytest.mark.skipif(
    journald() is None, reason="needs root and systemd-journald (apt-get install systemd)"
)
cgroups = pytest.mark.skipif(not cgroup_roots(), reason="needs leave to make control groups")
ebpf = pytest.mark.skipif(
    not can_load_bpf(), reason="needs the module unidle_scope, and root with BPF and BTF"
)
cargo = pytest.mark.skipif(not shutil.which("cargo"), reason="needs Rust (https://rustup.rs)")
clang = pytest.mark.skipif(
    not (shutil.which("clang") and shutil.which("llvm-strip")),
    reason="needs clang (apt-get install clang llvm)",
)
slurm = pytest.mark.skipif(
    not has_slurm(), reason="needs Slurm (apt-get install slurmctld slurmd slurm-client munge)"
)
kube = pytest.mark.skipif(
    not (is_root() and kube_assets()), reason="kube: needs root, and what `make kube-assets` builds"
)
gpu = pytest.mark.skipif(gpus() == 0, reason="GPU: needs one that NVML finds")
kernel_log = pytest.mark.kernel_log
own_mounts = pytest.mark.own_mounts
steady_times = pytest.mark.steady_times
