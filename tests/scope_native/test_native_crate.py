"""The crate's own tests, and the objects of BPF beside their sources."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import needs

NATIVE = Path(__file__).resolve().parents[2] / "native"
# To optimize the crate itself takes most of its build, and its tests take seconds without. What it uses is built as for users.
NOT_OPTIMIZED = ("--config", "profile.release.package.unidle-scope.opt-level=0")


@needs.clang
def test_the_objects_that_are_shipped_are_what_their_sources_make() -> None:
    ran = subprocess.run(
        [NATIVE / "bpf" / "build.sh", "--check"], check=False, capture_output=True, text=True
    )
    if ran.returncode == 3:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@needs.cargo
def test_the_crate_passes_its_own_tests() -> None:
    targets = ["--lib", "--tests"]  # examples are built by clippy
    command = ["cargo", "test", "--release", "--no-default-features", "--quiet", "--locked", *targets]
    ran = subprocess.run(
        [*command, *NOT_OPTIMIZED],
        cwd=NATIVE,
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"RUST_BACKTRACE": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-6000:]
    assert " passed; 0 failed" in ran.stdout
