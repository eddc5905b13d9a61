"""``unidle profile --top`` on a terminal; what other tools' files add."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from pathlib import Path

import needs
from e2e.commands import UNIDLE, unidle
from scope_cli.test_profile_command import SPIN, looked, running
from waiting import wait_until


@needs.ebpf
def test_the_screen_is_drawn_again_until_ctrl_c_and_its_last_state_stays(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    os.set_blocking(ours, False)
    drawn = bytearray()

    def reads(words: bytes, times: int) -> bool:
        try:
            while piece := os.read(ours, 65536):
                drawn.extend(piece)
        except OSError:  # nothing now, or the terminal was closed
            pass
        return drawn.count(words) >= times

    with running(tmp_path / "spin.py", SPIN) as spin:
        command = [*UNIDLE, "profile", str(spin.pid), "--top", "--seconds", "4"]
        environment = {**os.environ, "TERM": "xterm-256color"}
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as top:
            os.close(theirs)
            wait_until(lambda: reads(b"churn", 2), 60, "two screens")
            top.send_signal(signal.SIGINT)
            wait_until(lambda: reads(b"\x1b[?1049l", 1) and top.poll() is not None, 60, "its end")
    reads(b"", 0)
    os.close(ours)
    assert top.returncode == 0
    last = drawn.rpartition(b"\x1b[?1049l")[2].decode()  # after the other screen was left
    assert "Where the training thread's time goes" in last
    assert "churn" in last


def test_without_a_terminal_there_is_one_line_and_exit_code_2() -> None:
    done = unidle("profile", str(os.getpid()), "--top")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--top: needs a terminal" in done.stderr


@needs.ebpf
def test_a_page_and_a_file_of_another_tool_come_from_one_look(tmp_path: Path) -> None:
    """A trace without a device adds nothing, and is said to."""
    trace = tmp_path / "trace.json"
    trace.write_text(
        json.dumps({"traceEvents": [{"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}]})
    )  # fmt: skip
    page = tmp_path / "flame.html"
    with running(tmp_path / "spin.py", SPIN) as spin:
        told = looked(spin.pid, "--seconds", 1, "--import", trace, "--out", page)
    assert any("trace.json" in note for note in told["quality"]["notes"])
    text = page.read_text()
    assert 'data-category="python"' in text
    shown = unidle("profile", "--from", str(trace))
    assert shown.returncode == 0
    assert "T3" in shown.stdout
