"""An interrupt while the command line still imports: one line and exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

AT_IMPORT = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from unidle.__main__ import main
sys.argv[1:] = ["run", "-", sys.argv[-1]]
main()
"""
MODULES = ["typer.main", "unidle.cli.complete", "unidle.cli.main", "unidle.cli.help"]


@pytest.mark.parametrize("module", MODULES)
def test_an_interrupt_while_a_module_is_imported_prints_one_line(module: str) -> None:
    command = [sys.executable, "-c", AT_IMPORT, module]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "unidle: interrupted\n")


@pytest.mark.parametrize("module", MODULES)
def test_an_interrupt_at_any_moment_after_an_import_prints_no_traceback(module: str) -> None:
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
        # a command that waits for its input already prints nothing; where the signal came within exec() of a text, as dataclasses
        # use it, Python ends itself by the signal in the end, which a shell shows as 130, too
        assert command.wait() in (130, -signal.SIGINT)
        assert rest in (["unidle: interrupted\n"], [])
