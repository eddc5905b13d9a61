"""A reader that has seen enough, such as ``head``, is no failure of the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("words", [("fleet",), ("--help",), ("schema", "job")])
def test_output_that_nobody_reads_any_more_ends_a_command_in_order(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "unidle", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
