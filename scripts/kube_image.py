"""unidle's own image as an OCI archive, from this checkout and this machine's Python: no docker, no registry, no root.

    python scripts/kube_image.py OUT.tar [--name registry.example/unidle:0.1.0]

It has what deploy/kubernetes/Containerfile makes: the controller, the agents, and the box with a Python of its own for pods of
jobs. Its C libraries and a few programs (PROGRAMS) are those of this machine, so take the Containerfile for a release.
`ctr -n k8s.io images import OUT.tar` loads it on a node, `skopeo copy oci-archive:OUT.tar docker://...` into a registry.
The same checkout on the same machine gives the same bytes. Exit codes: 2 a wrong option, 3 something is missing here.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import hashlib
import io
import json
import os
import platform
import py_compile
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from unidle.box import archive, interpreter
from unidle.errors import BadInput, CannotRun, UnidleError

ROOT: Final = Path(__file__).resolve().parent.parent
EXTRAS: Final = "hosts,postgres"
PROGRAMS: Final = ("sh", "cat", "chroot", "env", "id", "ls", "nsenter", "sleep")
"""For commands of the site on nodes, and for a look into a pod."""
USER: Final = 65532
_LEFT_OUT: Final = (
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"),
    *("__pycache__", "config-*", "*.a", "_tkinter.*", "_test*", "xx*"),
)
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_AUTHORITIES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
_FILES: Final = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nunidle:x:{USER}:{USER}::/:/bin/sh\n",
    "etc/group": f"root:x:0:\nunidle:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "usr/local/bin/unidle": "#!/usr/local/bin/python3 -P\nimport sys\n\nfrom unidle.__main__ import main\n\nsys.exit(main())\n",
}
_MEDIA: Final = "application/vnd.oci.image"


def main(words: Sequence[str] | None = None) -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("out", type=Path, metavar="OUT.tar")
    given.add_argument("--name", default=f"unidle:{_version()}", help="of the image (default: %(default)s)")
    told = given.parse_args(words)
    try:
        write(told.out, told.name)
    except UnidleError as error:
        print(f"kube_image: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def write(out: Path, name: str) -> None:
    """Make the archive, and print what it has. Errors: BadInput for a name, CannotRun where a step fails."""
    _, colon, tag = name.rpartition(":")
    if not colon or not tag or "/" in tag:
        raise BadInput(
            "has no tag", field="--name", value=name, remedy="such as registry.example/unidle:0.1.0"
        )
    with tempfile.TemporaryDirectory(prefix="unidle-kube-image.") as folder:
        place = Path(folder)
        packages = _packages(place / "packages")
        layers = [
            ("Python, libraries of C, programs", _system(place / "system", packages)),
            ("unidle", _own(packages, place / "own")),
            ("packages", packages),
        ]
        layers[1:] = reversed(layers[1:])  # what changes most comes last
        image = _Archive(place / "image.tar")
        try:
            made = [image.layer(what, root) for what, root in layers]
            image.finish(name, tag, made)
        except OSError as error:
            raise CannotRun(f"the archive cannot be written: {error}") from None
        draft = out.with_name(f"{out.name}.{os.getpid()}")
        shutil.move(image.path, draft)
        draft.replace(out)
    print(f"kube_image: {out}: {name}, {out.stat().st_size / 1e6:.1f} MB")


def _version() -> str:
    from unidle import __version__

    return __version__


# -- what is in it -------------------------------------------------------------------------------


def _system(root: Path, packages: Path) -> Path:
    """Python at /usr/local, programs, the libraries of C that these and ``packages`` need, and what certificates are checked by."""
    program = os.path.realpath(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    standard = Path(sysconfig.get_path("stdlib"))
    library = root / "usr/local/lib" / version
    ignored = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(standard, library, ignore=ignored)
    dynload = [Path(path) for path in sys.path if path.endswith("lib-dynload")]
    if dynload and not (library / "lib-dynload").exists():
        shutil.copytree(dynload[0], library / "lib-dynload", ignore=ignored)
    (library / "site-packages").mkdir()
    binaries = {"usr/local/bin/python3": program}
    binaries |= {f"usr/bin/{name}": path for name in PROGRAMS if (path := shutil.which(name)) is not None}
    for inside, path in binaries.items():
        _copy(Path(path).resolve(), root / inside, 0o755)
    parts = [*library.rglob("*.so"), *packages.rglob("*.so")]
    _libraries(root, [*binaries.values(), *map(str, parts)], packages)
    (root / "bin").symlink_to("usr/bin")
    for inside, text in _FILES.items():
        (root / inside).parent.mkdir(parents=True, exist_ok=True)
        (root / inside).write_text(text)
    (root / "usr/local/bin/unidle").chmod(0o755)
    bundle = next((Path(path) for path in _AUTHORITIES if Path(path).exists()), None)
    wanted = ssl.get_default_verify_paths().openssl_cafile
    if bundle is not None:
        _copy(bundle, root / wanted.lstrip("/"), 0o644)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    interpreter.strip(str(root))
    _compile(library, f"/usr/local/lib/{version}")
    return root


def _libraries(root: Path, binaries: Iterable[str], packages: Path) -> None:
    """Those that ``packages`` do not bring along. The loader at its own path, and all libraries next to that of C, where it looks for them first."""
    loader_named = interpreter.interpreter_name(os.path.realpath(sys.executable))
    loader = os.path.realpath(loader_named)
    found = interpreter.libraries(loader, list(binaries))
    of_c = next(path for name, path in found.items() if name.startswith("libc."))
    folder = str(Path(of_c).parent).replace("/usr/lib", "/lib", 1)
    for name, path in found.items():
        if Path(path).is_relative_to(packages):
            continue
        _copy(Path(path), root / folder.lstrip("/") / name, 0o755)
    _copy(Path(loader), root / loader_named.lstrip("/"), 0o755)


def _packages(root: Path) -> Path:
    """What unidle needs, in the versions of requirements.lock, and unidle itself."""
    uv = ROOT / ".venv" / "bin" / "uv"
    site = root / _site()
    words = [
        *(str(uv), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(site)),
        *("--no-build-isolation", "--constraint", str(ROOT / "requirements.lock")),
        f"unidle[{EXTRAS}] @ {ROOT.as_uri()}",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"packages cannot be installed: {done.stderr.strip()}", remedy="run make setup")
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/direct_url.json"):
        record.unlink()  # names this checkout
    _compile(site, f"/{_site()}")
    return root


def _own(packages: Path, root: Path) -> Path:
    """unidle, in a layer of its own as it changes most, with the box and its Python."""
    site = root / _site()
    site.mkdir(parents=True)
    for path in (packages / _site()).glob("unidle*"):
        path.rename(site / path.name)
    archive.write(str(root / "box.pyz"))
    interpreter.write(str(root / "python"))
    return root


def _site() -> str:
    return f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def _compile(folder: Path, inside: str) -> None:
    """Byte code that is valid whatever the times of files."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder, quiet=2, ddir=inside, invalidation_mode=mode, workers=1)


def _copy(path: Path, to: Path, mode: int) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)
    to.chmod(mode)


# -- the archive ---------------------------------------------------------------------------------


class _Archive:
    """An image layout of OCI in a tar."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.open(path, "w")  # noqa: SIM115 - until finish
        self._layers: list[tuple[dict[str, Any], str]] = []

    def layer(self, what: str, root: Path) -> tuple[dict[str, Any], str]:
        """Add the files of a directory; the descriptor, and the digest of what is inside."""
        plain = self.path.with_suffix(".layer")
        with plain.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in _in_order(root):
                tar.add(path, str(path.relative_to(root)), recursive=False, filter=_timeless)
        content = plain.read_bytes()
        packed = gzip.compress(content, 6, mtime=0)
        print(f"kube_image: {what}: {len(content) / 1e6:.1f} MB, {len(packed) / 1e6:.1f} MB packed")
        inside = hashlib.sha256(content).hexdigest()
        return self._blob(packed, f"{_MEDIA}.layer.v1.tar+gzip"), f"sha256:{inside}"

    def finish(self, name: str, tag: str, layers: Sequence[tuple[dict[str, Any], str]]) -> None:
        system = {"architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
        config = {
            **system,
            "config": {
                "User": f"{USER}:{USER}",
                "Entrypoint": ["unidle"],
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"],
                "Labels": {"org.opencontainers.image.title": "unidle", "org.opencontainers.image.version": _version()},
            },
            "rootfs": {"type": "layers", "diff_ids": [digest for _, digest in layers]},
        }  # fmt: skip
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.manifest.v1+json",
            "config": self._blob(_json(config), f"{_MEDIA}.config.v1+json"),
            "layers": [descriptor for descriptor, _ in layers],
        }
        named = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": _whole_name(name)}
        listed = self._blob(_json(manifest), f"{_MEDIA}.manifest.v1+json")
        index = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.index.v1+json",
            "manifests": [{**listed, "platform": system, "annotations": named}],
        }
        self._add("index.json", _json(index))
        self._add("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        self._tar.close()

    def _blob(self, content: bytes, media: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        self._add(f"blobs/sha256/{digest}", content)
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    def _add(self, name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o644
        self._tar.addfile(entry, io.BytesIO(content))


def _whole_name(name: str) -> str:
    """As a kubelet looks for it: a name without a registry is one of Docker's."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _in_order(root: Path) -> Iterator[Path]:
    yield from sorted(root.rglob("*"))


def _timeless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    if entry.name != "tmp":
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


if __name__ == "__main__":
    sys.exit(main())
