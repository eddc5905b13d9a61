"""``unidle guard classify`` as a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import wait_until

COMMAND = [sys.executable, "-m", "unidle", "guard", "classify"]
LOG = (
    b"[1.0] usb 1-1: new device\n"
    b"[2.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    b"\xff\xfe\x00 not text\n" + b"x" * 2_000_000 + b"\n"
    b"[3.0] NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=python, Ch 00000008"
)


def classify(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [*COMMAND, *arguments], input=data, capture_output=True, timeout=60, env=environment
    )


def test_json_has_the_keys_of_the_contract_and_the_line_numbers_of_the_input():
    done = classify("--json", data=LOG)
    assert done.returncode == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(row) for row in rows] == [
        ["line", "kind", "code", "device", "role", "action", "because"]
    ] * 2
    assert [(row["line"], row["code"], row["role"], row["action"]) for row in rows] == [
        (2, 79, "culprit", "reboot_node"), (5, 45, "symptom", "ignore"),
    ]  # fmt: skip


def test_a_file_gives_what_standard_input_gives(tmp_path: Path):
    file = tmp_path / "kern.log"
    file.write_bytes(LOG)
    assert classify(str(file), "--json").stdout == classify("--json", data=LOG).stdout


def test_the_policy_decides_the_action_and_compare_shows_them_all():
    (row, _) = [
        json.loads(line) for line in classify("--json", "--policy", "eks", data=LOG).stdout.splitlines()
    ]
    assert (row["action"], row["because"].startswith("eks: ")) == ("replace", True)
    done = classify("--compare", data=LOG).stdout.decode()
    heads = done.splitlines()[0].split()
    assert heads[-5:] == ["unidle", "nvidia", "aks", "eks", "gke"]
    assert done.splitlines()[1].split()[-5:] == ["reboot_node", "reboot_node", "watch", "replace", "watch"]


def test_the_table_ends_with_the_deepest_fault():
    text = classify(data=LOG).stdout.decode()
    assert "deepest fault: line 2" in text
    assert "discounted as symptoms: xid 45" in text


def test_a_log_without_findings_prints_nothing_on_standard_output():
    for arguments in ((), ("--json",)):
        done = classify(*arguments, data=b"[1.0] usb 1-1: new device\n")
        assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("--policy", "gcp"), "--policy"), (("/no/such/file",), "FILE"), (("/",), "FILE")],
)
def test_bad_input_is_one_clear_line(arguments: tuple[str, ...], field: str):
    done = classify(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert field.encode() in done.stderr


def test_a_log_that_is_piped_in_is_answered_at_once():
    with subprocess.Popen([*COMMAND, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"[2.0] NVRM: Xid (PCI:0000:3b:00): 79, x\n")
        process.stdin.flush()
        line = process.stdout.readline  # while standard input is still open
        assert json.loads(wait_until(line, timeout_s=60))["code"] == 79
        process.stdin.close()
        process.wait(60)


def test_the_modules_of_the_classifier_need_no_numpy():
    code = "import sys, unidle.guard.log, unidle.guard.policy_table, unidle.guard.diagnosis, unidle.probe.journal; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"
