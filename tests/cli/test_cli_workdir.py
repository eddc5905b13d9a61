"""A working directory that was deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_deleted_working_directory_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$PWD"; exec "$0" -P -m unidle run --ranks 1 -- true'
    environment = {**os.environ, "UNIDLE_STORE": str(tmp_path / "store.db")}
    done = subprocess.run(
        ["sh", "-c", script, sys.executable],
        cwd=gone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "the working directory no longer exists" in done.stderr
    assert "Traceback" not in done.stderr
