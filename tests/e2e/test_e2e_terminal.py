"""What a person sees: help, completion, progress on a terminal, nothing but the answer in a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
from pathlib import Path

from e2e import gangs
from e2e.commands import ask, start, unidle


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
        process.wait(60)
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
    assert re.search(r"job-\w+ succeeded after 1 attempt in .+: all 2 ranks exited 0", seen)
    assert last[-1].startswith("report: /")


PRINTS = """
import os, sys, time
print("before")
for k in range(1, 6):
    print(f"\\r{k * 20} %", end="", file=sys.stderr, flush=True)
    time.sleep(0.1)
os.write(1, b"\\n\\x1b[31mred\\x1b[0m \\x1b[2Jno clearing \\xff\\nno end")
"""


def test_what_the_job_prints_is_shown_between_the_moving_lines(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    code, seen = on_a_terminal("run", "--store", tmp_path / "s.db", tmp_path / "prints.py")
    assert code == 0
    lines = [line.rpartition("\r\x1b[K")[2] for line in seen.split("\r\n")]
    shown = [line for line in lines if line in ("before", "100 %", "no end") or "red\x1b" in line]
    assert shown == [
        "before",
        "100 %",
        "\x1b[31mred\x1b[0m no clearing \N{REPLACEMENT CHARACTER}\x1b[0m",
        "no end",
    ]
    assert lines.index("no end") < next(k for k, line in enumerate(lines) if " succeeded after " in line)


def test_without_a_terminal_output_comes_as_it_is_and_progress_is_plain(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    words = ("run", "--store", tmp_path / "s.db", tmp_path / "prints.py")
    with start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    bar = b"".join(b"\r%d %%" % k for k in (20, 40, 60, 80, 100))
    assert out.startswith(b"before\n" + bar + b"\n\x1b[31mred\x1b[0m \x1b[2Jno clearing \xff\nno end\n\n")
    assert b"succeeded after 1 attempt in" in out
    assert b": submitted, 1 rank with 1 device\n" in err and b"\x1b" not in err


def test_chosen_ranks_are_shown_over_restarts_and_json_stays_pure(tmp_path: Path) -> None:
    script = 'echo "rank $RANK try $UNIDLE_ATTEMPT"; sleep 0.2; [ $UNIDLE_ATTEMPT = 2 ]'
    words = (
        "run",
        "--ranks",
        3,
        "--max-restarts",
        1,
        "--store",
        tmp_path / "s.db",
        "--logs",
        "0,2",
        "--json",
    )
    done = unidle(*words, "bash", "-c", script)
    assert json.loads(done.stdout)["state"] == "succeeded"
    shown = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert sorted(shown[:2]) == ["[0] rank 0 try 1", "[2] rank 2 try 1"]
    assert sorted(shown[2:]) == ["[0] rank 0 try 2", "[2] rank 2 try 2"]


def test_a_flood_on_a_terminal_is_passed_over_with_a_count(tmp_path: Path) -> None:
    flood = "import os\nfor k in range(300): os.write(1, b'x' * 9999 + b'\\n' + b'y\\n' * 20000)\nprint('the end')"
    (tmp_path / "flood.py").write_text(flood)
    code, seen = on_a_terminal("run", "--store", tmp_path / "s.db", tmp_path / "flood.py")
    assert code == 0
    assert len(seen) < 3_000_000
    assert "the end\r\n" in seen
    assert re.search(r"\d+ lines not shown: they came too fast", seen)


def test_a_reader_that_goes_away_costs_the_job_nothing(tmp_path: Path) -> None:
    words = (
        "run",
        "--store",
        tmp_path / "s.db",
        "bash",
        "-c",
        "for k in $(seq 400); do echo $k; sleep 0.002; done; exit 3",
    )
    with start(*words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.stdout.close()
        assert process.wait(60) == 1


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


def test_exit_codes_are_in_the_help() -> None:
    text = unidle("--help").stdout
    assert "Exit codes:\n  0    success" in text
    assert "  130  interrupted" in text


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
