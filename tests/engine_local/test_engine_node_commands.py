"""Remedies and checks as processes of their own: begun once, ended at their time limit, found again by the next controller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from unidle.engine.local.commands.runner import CommandRunner, LocalCommands
from unidle.engine.node_commands import NodeCheck, NodeCommand, NodeOutcome
from waiting import wait_until

S = 1_000_000_000


def done(runner: CommandRunner, name: str) -> NodeOutcome:
    found = wait_until(lambda: runner.look(name), 60, name)
    assert found is not None
    return found


def test_a_command_says_its_code_and_the_end_of_what_it_printed(tmp_path: Path) -> None:
    runner = CommandRunner(tmp_path / "hooks")
    runner.begin("a", ("sh", "-c", "echo hello; exit 7"), 10 * S)
    assert done(runner, "a") == NodeOutcome(7, False, "hello\n")


def test_it_is_begun_once_whoever_asks_again(tmp_path: Path) -> None:
    for _ in range(3):
        runner = CommandRunner(tmp_path / "hooks")
        for _ in range(2):
            runner.begin("a", ("sh", "-c", f"echo x >> {tmp_path}/log"), 10 * S)
    assert done(runner, "a").code == 0
    assert (tmp_path / "log").read_text() == "x\n"


def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    runner = CommandRunner(tmp_path / "hooks")
    runner.begin(
        "a", ("sh", "-c", f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/pid; wait; sleep 1000"), S // 2
    )
    assert done(runner, "a").late
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), 60, "its child to end")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_next_controller_waits_for_what_the_last_one_began(tmp_path: Path) -> None:
    """A process begins it and is killed with -9; it goes on, and another one takes its answer."""
    script = (
        "import os, signal\nfrom pathlib import Path\nfrom unidle.engine.local.commands.runner import CommandRunner\n"
        f"CommandRunner(Path({str(tmp_path / 'hooks')!r})).begin('a', ('sh', '-c', 'sleep 0.5; echo late'), 10**10)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False)
    assert ended.returncode == -signal.SIGKILL
    runner = CommandRunner(tmp_path / "hooks")
    assert runner.look("a") is None
    runner.begin("a", ("sh", "-c", "echo twice"), 10 * S)
    assert done(runner, "a").text == "late\n"


def test_one_whose_process_was_killed_is_said_to_be_lost(tmp_path: Path) -> None:
    runner = CommandRunner(tmp_path / "hooks")
    runner.begin("a", ("sleep", "1000"), 1000 * S)
    (keeper,) = runner._children
    child = int(wait_until(lambda: Path(f"/proc/{keeper}/task/{keeper}/children").read_text(), 60))
    os.kill(keeper, signal.SIGKILL)
    assert done(runner, "a") == NodeOutcome(None, False, "its end was not seen")
    os.kill(child, signal.SIGKILL)


def test_what_cannot_be_started_and_floods_of_output_are_told_in_bounds(tmp_path: Path) -> None:
    runner = CommandRunner(tmp_path / "hooks")
    runner.begin("none", ("/no/such/program",), S)
    assert done(runner, "none").code == 127
    runner.begin("flood", ("sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo end"), 20 * S)
    found = done(runner, "flood")
    assert found.code == 0 and found.text.endswith("end\n") and len(found.text) <= 1 << 16


def test_a_name_that_was_never_begun_has_no_answer(tmp_path: Path) -> None:
    assert CommandRunner(tmp_path / "hooks").look("a") is None


def test_what_a_restart_of_the_machine_ended_is_known_as_that(tmp_path: Path) -> None:
    runner = CommandRunner(tmp_path / "hooks")
    runner.begin("a", ("sleep", "1000"), 1000 * S)
    (keeper,) = runner._children
    child = int(wait_until(lambda: Path(f"/proc/{keeper}/task/{keeper}/children").read_text(), 60))
    os.kill(keeper, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    order = tmp_path / "hooks" / "a" / "order.json"
    order.write_text(json.dumps(json.loads(order.read_text()) | {"boot": "an earlier one"}))
    assert done(runner, "a") == NodeOutcome(None, False, "the machine restarted while it ran", restarted=True)


def test_unidles_own_check_is_of_the_node_and_counts_what_the_order_has(tmp_path: Path) -> None:
    commands = LocalCommands(tmp_path / "hooks", 0)
    assert not commands.elsewhere and not commands.away("n1")
    commands.begin(NodeCommand("a", "n1", NodeCheck("quick", 60 * S, (str(tmp_path),)), 60 * S))
    found = wait_until(lambda: commands.look("a"), 60)
    commands.forget("a")
    assert found.code in (0, 1, 3) and json.loads(found.text)["node"] == "n1"
    words = json.loads((tmp_path / "hooks" / "a" / "order.json").read_text())["words"]
    assert words[-3:] == ["--log-since", "60.000", f"--used={tmp_path}"]
