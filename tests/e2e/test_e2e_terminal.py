"""What a person sees: help, completion, progress on a terminal, nothing but the answer in a pipe."""

from __future__ import annotations

import os
import pty
import re
import select
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e import gangs
from e2e.commands import ask, start, unidle

COMMANDS = (
    "run", "up", "submit", "list", "show", "logs", "cancel", "explain", "fleet", "ledger", "report", "schema",
    "doctor", "store", "store check", "store export", "store import", "store compact",
)  # fmt: skip


def on_a_terminal(*words: object) -> tuple[int, str]:
    """Run a command on a terminal of 100 columns; its exit code and all that it wrote there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    seen = b""
    with start(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    seen += os.read(ours, 65536)
                except OSError:  # the terminal's other side was closed
                    break
        process.wait(20)
    os.close(ours)
    return process.returncode, seen.decode()


def test_run_shows_progress_and_a_coloured_picture_on_a_terminal(tmp_path: Path) -> None:
    file = gangs.write_job(tmp_path / "job.yaml", "sleep 0.5", ranks=2)
    code, seen = on_a_terminal("run", file, "--store", tmp_path / "s.db")
    assert code == 0
    assert "submitted, 2 ranks with 1 device each" in seen
    assert "2 of 2 ranks up" in seen
    assert "\x1b[38;5;" in seen
    assert "\N{REPLACEMENT CHARACTER}" not in seen
    last = seen.replace("\r", "").splitlines()
    assert last[-2].endswith(" succeeded after 1 attempt: all 2 ranks exited 0")
    assert last[-1].startswith("report: /")


def test_run_is_quiet_in_a_pipe(tmp_path: Path) -> None:
    done = unidle("run", "--store", tmp_path / "s.db", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "capacity" in done.stdout


def test_plain_progress_can_be_asked_for(tmp_path: Path) -> None:
    done = unidle(
        "run", "--progress", "plain", "--json", "--store", tmp_path / "s.db", "--", "sh", "-c", "exit 7"
    )
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1
    assert "rank 0 exited 7" in done.stderr


def test_terminal_that_has_no_block_characters_still_gets_an_answer(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = unidle("run", "--store", tmp_path / "s.db", "--", "true", env=environment)
    assert done.returncode == 0, done.stderr


def test_every_command_has_help() -> None:
    with ThreadPoolExecutor(2) as pool:
        helps = list(pool.map(lambda name: unidle(*name.split(), "--help"), COMMANDS))
    for name, done in zip(COMMANDS, helps, strict=True):
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Usage: unidle {name} ")
        assert not re.search(r"--[a-z-]+ <|\[\[", done.stdout), "an option without a word for its value"


def test_exit_codes_are_in_the_help() -> None:
    text = unidle("--help").stdout
    assert "Exit codes: 0 success" in text
    assert "130 interrupted" in text


def test_completion_script_is_printed() -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = unidle("--show-completion", "bash", env=environment)
    assert done.returncode == 0, done.stderr
    assert "_UNIDLE_COMPLETE=complete_bash" in done.stdout


def test_doctor_and_schema_speak_json(tmp_path: Path) -> None:
    checks = ask("doctor", "--store", tmp_path / "s.db")
    assert {"Python", "GPU", "cgroups", "eBPF", "PostgreSQL"} <= {check["name"] for check in checks}
    assert all(check["needed_for"] for check in checks if check["state"] != "ok")
    assert not (tmp_path / "s.db").exists()
    for file in ("job", "fleet"):
        done = unidle("schema", file)
        assert done.returncode == 0
        assert '"$schema"' in done.stdout
