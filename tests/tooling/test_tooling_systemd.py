"""The systemd unit that ships: systemd accepts it, and its command is one that unidle has."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.commands import unidle

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "unidle.service"


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze (apt-get install systemd)")
    # where unidle is installed is the reader's to say: only that it is a program is checked
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace("/usr/local/bin/unidle", "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", here], capture_output=True, text=True, check=False)
    about = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert about == []


def test_the_unit_runs_a_command_that_unidle_has(tmp_path: Path) -> None:
    program, *words = shlex.split(settings()["Service"]["ExecStart"])
    assert Path(program).name == "unidle"
    done = unidle(*words, "--until-idle", "--cpu-devices", 1, "--store", tmp_path / "s.db")
    assert done.returncode == 0, done.stderr


def test_the_unit_leaves_ranks_alone_and_starts_again_unless_the_input_is_wrong() -> None:
    service = settings()["Service"]
    assert service["KillMode"] == "process"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", "3"]
    assert settings()["Unit"]["StartLimitIntervalSec"] == "0"
