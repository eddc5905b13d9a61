"""An interrupt while the command line still imports: one line and exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["typer.main", "unidle.cli.complete", "unidle.errors", "unidle.cli.help"])
def test_an_interrupt_during_imports_prints_one_line(module: str) -> None:
    # the interpreter reports each import; the command waits for its input, so that it never ends before the signal
    with subprocess.Popen(
        [sys.executable, "-m", "unidle", "run", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
    ) as command:  # fmt: skip
        assert command.stderr is not None
        for line in command.stderr:
            if line.rpartition("|")[2].strip() == module:
                break
        command.send_signal(signal.SIGINT)
        rest = [line for line in command.stderr if not line.startswith("import time:")]
        assert (command.wait(), rest) == (130, ["unidle: interrupted\n"])
