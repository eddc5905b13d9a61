"""Kills with SIGKILL at each line of a start, and of a restart, of a box, an agent and a controller (``at_line.py``).

Of a start all lines are known once one was followed without a kill. Some of them are then tried, chosen by the dice. Lines
of restarts are tried many in one gang, which trains all the time: each start finds what the one that was killed before it
left. A line that the start did not reach comes later in the life of the process, and has a gang of its own.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from host_faults.network_faults import finished
from host_faults.rig import MARK, Rig
from host_faults.warm_hosts import SPEC, WarmHosts
from waiting import wait_until

PAIR = ("n1", "n2")  # a gang of two ranks is on both
PARTS = {
    "box": ["/unidle/box/", "/unidle/engine/local/ranks/"],
    "agent": ["/unidle/agent/", "/unidle/hub/"],
    "up": ["/unidle/hub/", "/unidle/engine/hosts/", "/unidle/control/hosts.py"],
}


class Launched:
    """A node (or ``hub``) whose processes run under the launcher, with what the next of them is to do."""

    def __init__(self, rig: Rig, node: str) -> None:
        self.rig, self.node = rig, node
        self.spec = rig.place / f"{node}.spec"
        self._count = 0
        self.plan("none", 0, 0)
        rig.env[node] = {SPEC: str(self.spec)}

    def plan(self, role: str, start: int, line: int) -> None:
        """Kill the ``start``-th process of a role from now on at its ``line``-th line; 0: follow it only."""
        self._count += 1
        content = {
            "role": role,
            "start": start,
            "line": line,
            "parts": PARTS.get(role, []),
            "name": str(self._count),
        }
        draft = self.spec.with_suffix(".draft")
        draft.write_text(json.dumps(content))
        draft.replace(self.spec)
        Path(f"{self.spec}.lines").unlink(missing_ok=True)

    @property
    def lines(self) -> list[str]:
        path = Path(f"{self.spec}.lines")
        return path.read_text().splitlines() if path.exists() else []

    @property
    def was_killed(self) -> bool:
        return self.lines[-1:] == ["killed"]


@contextmanager
def pair_of(place: Path, node: str, deadline_s: int = 30) -> Iterator[tuple[Rig, Launched]]:
    """Two hosts; what starts on one node runs under the launcher. The deadline leaves time for restarts on a busy machine."""
    with ExitStack() as stack:
        rig = _rig(place, stack, deadline_s)
        launched = Launched(rig, node)
        rig.serve()
        for node in PAIR:
            rig.join(node)
        rig.joined(PAIR)
        yield rig, launched


@contextmanager
def bare_of(place: Path, deadline_s: int = 30) -> Iterator[Rig]:
    """Networks and a directory: nothing runs there yet."""
    with ExitStack() as stack:
        yield _rig(place, stack, deadline_s)


def _rig(place: Path, stack: ExitStack, deadline_s: int) -> Rig:
    rig = Rig(place, stack, deadline_s)
    rig.warm = WarmHosts({MARK: rig.run})
    return rig


def box_start(rig: Rig, launched: Launched, number: int, line: int) -> str:
    """The box of a gang on n2 is killed at a line of its first start, or of the rest of its life."""
    name = f"boxstart-{number}"
    launched.plan("box", 0, line)
    job = rig.submit(name)
    rig.trains(job)
    return finished(rig, name, job)


def box_restart(rig: Rig, launched: Launched, number: int, line: int) -> str:
    """The box of a gang that trains is killed, and the next one at a line of its start."""
    name = f"boxrestart-{number}"
    launched.plan("box", 1, line)
    job = rig.submit(name)
    rig.trains(job)
    first = rig.until(lambda: rig.box_pid("n2", job), "the box")
    rig.kill_pid(first)
    rig.until(lambda: launched.lines, "the next box")
    rig.until(lambda: rig.box_pid("n2", job), "a box that stays")
    return finished(rig, name, job)


def agent_start(rig: Rig, launched: Launched, number: int, line: int) -> str:
    """The agent of a host that is new is killed at a line of its start, while a gang waits for the host."""
    name = f"agentstart-{number}"
    launched.plan("none", 0, 0)
    rig.until(lambda: _left_on_purpose(rig), "the agent to leave")
    rig.until(lambda: "n2" not in {node.id for node in rig.view().fleet.nodes}, "n2 to leave")
    _keep_runs(rig, number)
    job = rig.submit_held(name)
    launched.plan("agent", 0, line)
    rig.join("n2")
    rig.until(lambda: _runs_again(rig) and _trains(rig, job), f"{job} to train")
    ended = finished(rig, name, job)
    rig.until(lambda: _runs_again(rig), "the agent")
    return ended


def agent_restart(rig: Rig, launched: Launched, number: int, line: int) -> str:
    """The agent of a gang that trains is killed, and the next one at a line of its start."""
    name = f"agentrestart-{number}"
    job = rig.submit(name)
    rig.trains(job)
    rig.kill_agent("n2")
    launched.plan("agent", 0, line)
    rig.join("n2")
    rig.until(lambda: _runs_again(rig), "the agent")
    ended = finished(rig, name, job)
    rig.until(lambda: _runs_again(rig), "the agent")
    return ended


def box_restarts(rig: Rig, launched: Launched, number: int, lines: Iterable[int]) -> tuple[str, list[int]]:
    """As :func:`box_restart` at each of these lines, in one gang. How its job ended, and the lines that were not reached."""
    name, missed = f"boxrestarts-{number}", []
    job = rig.submit(name)
    rig.trains(job)
    for line in lines:
        before = rig.until(lambda: rig.box_pid("n2", job), "the box")
        launched.plan("box", 0, line)
        rig.kill_pid(before)
        rig.until(lambda: launched.lines, "the next box")  # by now the log has what the one before it sent
        steps = rig.steps_on("n2", job)
        rig.until(
            lambda steps=steps: launched.was_killed or rig.steps_on("n2", job) > steps,
            "the kill, or news of n2",
        )
        if not launched.was_killed:
            missed.append(line)
    launched.plan("none", 0, 0)
    rig.until(lambda: rig.box_pid("n2", job), "a box that stays")
    return finished(rig, name, job), missed


def agent_restarts(rig: Rig, launched: Launched, number: int, lines: Iterable[int]) -> tuple[str, list[int]]:
    """As :func:`agent_restart` at each of these lines, in one gang."""
    name, missed = f"agentrestarts-{number}", []
    job = rig.submit(name)
    rig.trains(job)
    for line in lines:
        rig.kill_agent("n2")
        launched.plan("agent", 0, line)
        rig.join("n2")
        rig.until(lambda: launched.was_killed or rig.was_welcomed("n2"), "the kill, or the agent")
        if not launched.was_killed:
            missed.append(line)
    launched.plan("none", 0, 0)
    rig.until(lambda: _runs_again(rig), "the agent")
    ended = finished(rig, name, job)
    rig.until(lambda: _runs_again(rig), "the agent")  # one of a line that came later
    return ended, missed


def controller_restarts(
    rig: Rig, launched: Launched, number: int, lines: Iterable[int]
) -> tuple[str, list[int]]:
    """As :func:`controller_restart` at each of these lines, in one gang. The deadline bears all of them."""
    name, missed = f"uprestarts-{number}", []
    launched.plan("none", 0, 0)
    job = rig.submit(name)
    rig.until(lambda: _serves(rig) and _trains(rig, job), f"{job} to train")
    for line in lines:
        rig.kill_controller()
        steps = rig.steps(job)  # the log has no news without a controller
        launched.plan("up", 0, line)
        process = rig.serve(wait=False)
        rig.until(
            lambda process=process, steps=steps: process.poll() is not None or rig.steps(job) > steps,
            "the kill, or news of the gang",
        )
        if process.poll() is None:
            missed.append(line)
        else:
            assert launched.was_killed, rig.errors("hub")
    launched.plan("none", 0, 0)
    if rig.controller.poll() is not None:
        rig.serve()
    rig.joined(PAIR)
    return _served_to_the_end(rig, name, job), missed


def _runs_again(rig: Rig) -> bool:
    """Whether the agent has joined; one that was killed, at whatever line, is started again, as by an init system."""
    if rig.agents["n2"].poll() is not None:
        rig.join("n2")
    return rig.has_joined("n2")


def _left_on_purpose(rig: Rig) -> bool:
    """Whether the agent has taken its host out of the fleet; it may have been killed at one of its last lines."""
    rig.until(lambda: _runs_again(rig), "the agent")
    rig.agents["n2"].terminate()
    return rig.agents["n2"].wait(60) == 0


def _keep_runs(rig: Rig, number: int) -> None:
    """A new host has no state; the journals of what ran there before are still compared with the log."""
    kept = rig.place / f"n2-before-{number}"
    shutil.move(rig.place / "n2", kept)


def controller_start(rig: Rig, launched: Launched, number: int, line: int) -> str:
    """The first controller of a store is killed at a line of its start, with a job in the store and hosts that want to join."""
    name = f"upstart-{number}"
    job = rig.submit_held(name)
    launched.plan("up", 0, line)
    process = rig.serve(wait=False)
    wait_until(lambda: process.poll() is not None or rig.listens(), 60, "the controller")
    if rig.join_file.exists():
        for node in PAIR:
            rig.join(node)
    if line:
        rig.until(lambda: process.poll() is not None or _trains(rig, job), "the kill, or a gang that trains")
    if process.poll() is not None:
        assert launched.was_killed, rig.errors("hub")
        rig.serve()
    for node in PAIR:
        if node not in rig.agents or rig.agents[node].poll() is not None:
            rig.join(node)
    rig.joined(PAIR)
    rig.trains(job)
    return _served_to_the_end(rig, name, job)


def controller_restart(rig: Rig, launched: Launched, number: int, line: int) -> str:
    """The controller of a gang that trains is killed, and the next one at a line of its start."""
    name = f"uprestart-{number}"
    launched.plan("none", 0, 0)
    job = rig.submit(name)
    rig.until(lambda: _serves(rig) and _trains(rig, job), f"{job} to train")
    rig.kill_controller()
    steps = rig.steps(job)
    launched.plan("up", 0, line)
    process = rig.serve(wait=False)
    if line:
        rig.until(
            lambda: process.poll() is not None or rig.steps(job) > steps, "the kill, or news of the gang"
        )
    if process.poll() is not None:
        assert launched.was_killed, rig.errors("hub")
        rig.serve()
    rig.joined(PAIR)
    return _served_to_the_end(rig, name, job)


def _serves(rig: Rig) -> bool:
    """Whether a controller runs. That of the try before may be killed at a line that it reached only after its job had ended."""
    if rig.controller.poll() is not None:
        rig.serve()
    return True


def _served_to_the_end(rig: Rig, name: str, job: str) -> str:
    """How the job ended. A controller that is killed at one of its last lines is followed by another, which ends the boxes."""
    rig.go(name)
    rig.until(lambda: rig.controller.poll() is not None or _is_over(rig, job), f"{job} to end, or the kill")
    ended = finished(rig, name, job) if rig.controller.poll() is None else ""
    if rig.controller.poll() is not None:
        rig.serve()
    return ended or finished(rig, name, job)


def _is_over(rig: Rig, job: str) -> bool:
    found = rig.job(job)
    return found is not None and found.terminal


def _trains(rig: Rig, job: str) -> bool:
    found = rig.job(job)
    return (
        found is not None and bool(found.attempts) and all(rank.step_n for rank in found.attempts[-1].ranks)
    )


def chosen(lines: int, tries: int, dice: random.Random) -> list[int]:
    """Numbers of lines to try, in order; all of them where there are not more."""
    return sorted(dice.sample(range(1, lines + 1), min(tries, lines)))
