"""What a cluster is made of: built once from pinned Go modules (kube/assets), and kept outside of the checkout.

    make kube-assets

The directory is UNIDLE_CACHE, else XDG_CACHE_HOME/unidle, else ~/.cache/unidle; below it ``kube/KEY``. KEY is a hash of the
modules' go.mod and go.sum, of the image's program and of how all is built, so that another version is another directory. A
build goes on where an earlier one was interrupted. The directory gets its name when it is complete.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kube_cluster.layout import ROOT
from unidle.errors import CannotRun, UnidleError

MODULES: Final = ROOT / "kube" / "assets"
FLAGS: Final = ("-trimpath", "-mod=readonly", "-buildvcs=false")
_LOG_LINES: Final = 15


@dataclass(frozen=True, slots=True)
class Program:
    """A program, the module of kube/assets that pins it, and its package in there."""

    name: str
    module: str
    package: str
    tags: str = ""


_KUBERNETES: Final = "k8s.io/kubernetes"
_CONTAINERD: Final = "github.com/containerd/containerd/v2/cmd"
_NO_SNAPSHOTTERS: Final = "no_btrfs no_zfs no_devmapper no_aufs"
PROGRAMS: Final = (
    Program("kube-tool", "tool", "."),
    Program("containerd", "containerd", f"{_CONTAINERD}/containerd", _NO_SNAPSHOTTERS),
    Program(
        "containerd-shim-runc-v2", "containerd", f"{_CONTAINERD}/containerd-shim-runc-v2", _NO_SNAPSHOTTERS
    ),
    Program("ctr", "containerd", f"{_CONTAINERD}/ctr", _NO_SNAPSHOTTERS),
    Program("kube-apiserver", "kubernetes", f"{_KUBERNETES}/cmd/kube-apiserver"),
    Program("kubectl", "kubernetes", f"{_KUBERNETES}/cmd/kubectl"),
    Program("kubelet", "kubernetes", f"{_KUBERNETES}/cmd/kubelet"),
    Program("kube-controller-manager", "kubernetes", f"{_KUBERNETES}/cmd/kube-controller-manager"),
    Program("kube-scheduler", "kubernetes", f"{_KUBERNETES}/cmd/kube-scheduler"),
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
)
HELM: Final = Program("helm", "helm", "helm.sh/helm/v3/cmd/helm")
"""Installs the chart in tests. It is built apart, so that another version of it leaves the cluster's programs alone."""
STAGES: Final = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
"""How kwok's nodes and pods behave: files of its module, below kustomize/stage."""


@dataclass(frozen=True, slots=True)
class Assets:
    """The directory of complete assets."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def stages(self) -> Path:
        """The configuration of kwok."""
        return self.folder / "kwok-stages.yaml"

    def program(self, name: str) -> str:
        return str(self.programs / name)


def cache_folder() -> Path:
    """Where assets of all versions are."""
    if own := os.environ.get("UNIDLE_CACHE"):
        return Path(own) / "kube"
    common = os.environ.get("XDG_CACHE_HOME")
    return (Path(common) if common else Path.home() / ".cache") / "unidle" / "kube"


def key() -> str:
    """Names the version of everything that is built."""
    told = hashlib.sha256(repr((platform.machine(), FLAGS, PROGRAMS, STAGES)).encode())
    for module in sorted({program.module for program in PROGRAMS}):
        for file in sorted((MODULES / module).iterdir()):
            told.update(f"{module}/{file.name}".encode() + b"\0" + file.read_bytes() + b"\0")
    return told.hexdigest()[:16]


def complete() -> Assets | None:
    """The assets of this checkout where they are built."""
    folder = cache_folder() / key()
    return Assets(folder) if folder.is_dir() else None


def needed() -> Assets:
    """The assets. Errors: CannotRun where they are not built."""
    if (found := complete()) is None:
        raise CannotRun(
            f"the programs of the cluster are not built: there is no {cache_folder() / key()}",
            remedy="run make kube-assets (10 minutes on two cores, once)",
        )
    return found


def helm() -> str:
    """The program. Errors: CannotRun where it is not built."""
    path = _helm_folder() / HELM.name
    if not path.exists():
        raise CannotRun("helm is not built", value=str(path), remedy="run make kube-assets")
    return str(path)


def _helm_folder() -> Path:
    told = hashlib.sha256(repr((platform.machine(), FLAGS, HELM)).encode())
    for name in ("go.mod", "go.sum"):
        told.update((MODULES / HELM.module / name).read_bytes())
    return cache_folder() / f"helm-{told.hexdigest()[:16]}"


def build_helm() -> None:
    """Build helm where it is missing. Errors: as of :func:`build`."""
    folder = _helm_folder()
    if (folder / HELM.name).exists():
        return
    _check_go()
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    target = folder / f".{HELM.name}.{os.getpid()}.new"
    words = ["go", "build", *FLAGS, "-ldflags", "-s -w", "-o", str(target), HELM.package]
    _go(words, HELM.module, "build of helm")
    target.rename(folder / HELM.name)
    _tell(f"built helm in {time.monotonic() - begun:.0f} s")


def version_of(module: str, required: str) -> str:
    """The version of a required module that kube/assets pins."""
    text = (MODULES / module / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(required)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise UnidleError(f"kube/assets/{module}/go.mod requires no {required}")
    return found[1]


def kubernetes_version() -> str:
    return version_of("kubernetes", _KUBERNETES)


def build() -> Assets:
    """Build what is missing, and print what and how long it took. Errors: CannotRun without Go, UnidleError."""
    if (found := complete()) is not None:
        _tell(f"complete: {found.folder}")
        return found
    _check_go()
    folder = cache_folder() / key()
    draft = folder.with_name(f"{folder.name}.new")
    (draft / "bin").mkdir(parents=True, exist_ok=True)
    with _alone(draft):
        if (found := complete()) is not None:
            return found
        begun = time.monotonic()
        _tell(
            f"Kubernetes {kubernetes_version()} and containerd for {folder}; about 10 minutes on two idle cores"
        )
        for program in PROGRAMS:
            if not (draft / "bin" / program.name).exists():
                _build_one(program, draft)
        _write_stages(draft)
        took = time.monotonic() - begun
        (draft / "lock").unlink()
        draft.rename(folder)
    _tell(f"complete in {took:.0f} s: {folder}")
    return Assets(folder)


def _check_go() -> None:
    wanted = max(_wanted(program.module) for program in PROGRAMS)
    text = ".".join(map(str, wanted))
    if shutil.which("go") is None:
        raise CannotRun(
            "there is no Go on PATH", remedy=f"install Go {text} or newer: https://go.dev/doc/install"
        )
    printed = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    found = re.match(r"go([0-9.]+)", printed.stdout)
    have = tuple(int(part) for part in found[1].strip(".").split(".")) if found else ()
    if have < wanted and os.environ.get("GOTOOLCHAIN", "") in ("", "local"):
        raise CannotRun(
            f"Go {text} or newer is needed",
            value=printed.stdout.strip(),
            remedy="install it: https://go.dev/doc/install",
        )


def _wanted(module: str) -> tuple[int, ...]:
    found = re.search(r"^go ([0-9.]+)$", (MODULES / module / "go.mod").read_text(), re.MULTILINE)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


@contextmanager
def _alone(draft: Path) -> Iterator[None]:
    """One build of these assets at a time; a second one waits."""
    with (draft / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell("waiting for another build of the same")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_one(program: Program, draft: Path) -> None:
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    names = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    stamps = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in names.items()]
    target = draft / "bin" / f".{program.name}.new"
    words = ["go", "build", *FLAGS, "-tags", program.tags, "-ldflags", " ".join(["-s", "-w", *stamps])]
    begun = time.monotonic()
    _go([*words, "-o", str(target), program.package], program.module, f"build of {program.name}")
    target.rename(draft / "bin" / program.name)
    size = (draft / "bin" / program.name).stat().st_size
    _tell(f"built {program.name}, {size / 1e6:.0f} MB, in {time.monotonic() - begun:.0f} s")


def _go(words: list[str], module: str, what: str) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(
        words, cwd=MODULES / module, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-_LOG_LINES:])
        _tell(last)
        raise UnidleError(
            f"the {what} failed (exit code {done.returncode})",
            remedy="see above; without network, set GOPROXY to a module proxy, and run it again: it goes on where it was",
        )
    return done.stdout


def _write_stages(draft: Path) -> None:
    listed = _go(["go", "list", "-m", "-json", "sigs.k8s.io/kwok"], "kwok", "search for kwok's module")
    place = Path(json.loads(listed)["Dir"]) / "kustomize" / "stage"
    text = "---\n".join((place / stage).read_text() for stage in STAGES)
    (draft / "kwok-stages.yaml").write_text(text)


def _tell(text: str) -> None:
    print(f"kube-assets: {text}", file=sys.stderr, flush=True)
