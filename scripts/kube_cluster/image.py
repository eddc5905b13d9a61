"""The image of a cluster's nodes, as an archive in the form of ``docker save``: one layer, made here without a registry.

It holds ``/kube-tool`` (kube/assets/tool), ``/box.pyz`` and ``/python`` (``unidle.box``), and empty places, so that a pod of a test can mount the user space of this
machine there: /usr with the usual links to it, /root, /work, and so on.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kube_cluster.layout import IMAGE
from unidle.box import archive, interpreter

_FOLDERS: Final = (
    *("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "usr"),
    *("var", "var/lib", "var/log", "work", "data"),
)
_LINKS: Final = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def write(path: Path, tool: Path) -> None:
    """Write the archive. The same ``tool`` gives the same bytes."""
    layer = _layer(tool)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/kube-tool"], "Cmd": ["pause"], "Env": ["PATH=/usr/bin:/bin:/"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    told = json.dumps(config).encode()
    name = f"{hashlib.sha256(told).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [IMAGE], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(path, "w") as image:
        for entry, content in (
            (name, told),
            (f"{digest}/layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(image, entry, content)


def _layer(tool: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in _FOLDERS:
            _entry(layer, folder, tarfile.DIRTYPE)
        _entry(layer, "tmp", tarfile.DIRTYPE, mode=0o1777)
        for name, target in _LINKS.items():
            _entry(layer, name, tarfile.SYMTYPE, target=target)
        for name, text in _FILES.items():
            _add(layer, name, text.encode())
        _add(layer, "kube-tool", tool.read_bytes(), mode=0o755)
        for path, content, mode in _box():
            _add(layer, path, content, mode)
    return buffer.getvalue()


def _box() -> Iterator[tuple[str, bytes, int]]:
    """A box as this checkout has it, and a Python for it: the same sources give the same bytes."""
    with tempfile.TemporaryDirectory(prefix="unidle-kube-box.") as folder:
        archive.write(f"{folder}/box.pyz")
        interpreter.write(f"{folder}/python")
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(folder)), path.read_bytes(), path.stat().st_mode & 0o777


def _entry(layer: tarfile.TarFile, name: str, kind: bytes, *, mode: int = 0o755, target: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname = kind, mode, target
    layer.addfile(entry)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
