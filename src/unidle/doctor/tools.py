"""Programs and packages that unidle, its tests or its optional parts use."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path

from unidle.doctor.check import DoctorCheck, on_path, read


def python() -> DoctorCheck:
    """The interpreter that runs unidle; packaging sees to it that it is recent enough."""
    detail = f"{platform.python_implementation()} {platform.python_version()}"
    return DoctorCheck("Python", "ok", detail, "everything")


def pytorch() -> DoctorCheck:
    """PyTorch next to unidle; a job's own environment may have another."""
    use = "the demo and the examples (jobs may use another one)"
    version = _installed("torch")
    if version is None:
        return DoctorCheck("PyTorch", "missing", "not installed", use, "pip install 'unidle[train]'")
    return DoctorCheck("PyTorch", "ok", version, use)


def postgresql(root: Path, environ: Mapping[str, str]) -> DoctorCheck:
    """The client library for a store on PostgreSQL, and the server for the tests."""
    use = "a store on PostgreSQL (client), its tests (server)"
    client = _installed("psycopg")
    server = _newest_postgres(root, environ)
    detail = f"psycopg {client or 'is missing'}, server {server or 'is missing'}"
    if client is None:
        return DoctorCheck("PostgreSQL", "missing", detail, use, "pip install 'unidle[postgres]'")
    if server is None:
        return DoctorCheck(
            "PostgreSQL", "limited", detail, use, "only for the tests: apt-get install postgresql"
        )
    return DoctorCheck("PostgreSQL", "ok", detail, use)


def chromium(environ: Mapping[str, str]) -> DoctorCheck:
    """A browser for the tests of the report."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return _program("Chromium", names, environ, "tests of the HTML report", "apt-get install chromium")


def go(root: Path, environ: Mapping[str, str]) -> DoctorCheck:
    """The Go tools."""
    use = "building the Kubernetes servers for tests"
    return _program("Go", ("go",), environ, use, "see go.dev/dl", (root / "usr/local/go/bin",))


def rust(environ: Mapping[str, str]) -> DoctorCheck:
    """The Rust tools."""
    home = environ.get("CARGO_HOME") or str(Path(environ.get("HOME", "/")) / ".cargo")
    use = "building the profiler from source"
    return _program("Rust", ("cargo",), environ, use, "see rustup.rs", (Path(home) / "bin",))


def kubernetes(environ: Mapping[str, str]) -> DoctorCheck:
    """Kubernetes' own servers, named by KUBEBUILDER_ASSETS or on the search path."""
    use = "tests of the Kubernetes engine"
    assets = environ.get("KUBEBUILDER_ASSETS")
    more = (Path(assets),) if assets else ()
    wanted = ("kube-apiserver", "etcd")
    found = [name for name in wanted if on_path(name, environ, more)]
    if len(found) == len(wanted):
        return DoctorCheck("Kubernetes", "ok", ", ".join(found), use)
    lacking = ", ".join(name for name in wanted if name not in found)
    remedy = "point KUBEBUILDER_ASSETS at a directory that has them (setup-envtest use)"
    return DoctorCheck("Kubernetes", "limited" if found else "missing", f"no {lacking}", use, remedy)


def _installed(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _newest_postgres(root: Path, environ: Mapping[str, str]) -> str | None:
    """The newest server's version, by Debian's layout, or else where it stands on the search path."""
    versions = [
        int(path.parent.parent.name)
        for path in (root / "usr/lib/postgresql").glob("*/bin/initdb")
        if path.parent.parent.name.isdigit()
    ]
    if versions:
        return str(max(versions))
    found = on_path("initdb", environ)
    return str(found) if found else None


def _program(
    name: str,
    programs: tuple[str, ...],
    environ: Mapping[str, str],
    use: str,
    remedy: str,
    more: tuple[Path, ...] = (),
) -> DoctorCheck:
    for program in programs:
        found = on_path(program, environ, more)
        if found:
            version = read(found.resolve().parent.parent / "VERSION")
            known = re.match(r"go[0-9.]+", version or "")
            return DoctorCheck(name, "ok", f"{known[0]} at {found}" if known else str(found), use)
    return DoctorCheck(name, "missing", "not found", use, remedy)
