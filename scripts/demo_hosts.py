"""The demo of many hosts: a controller and three hosts, each a network namespace, joined by agents; four ranks train over all.

    make demo-hosts

One rank is killed, then the network of a host is cut until its ranks count as lost, and comes back. Needs root and iproute2.
A directory below .cache/demo has the store and what each host wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from demo import FollowedDemo, marks, place_with_gpt, steps_of, tell
from unidle.drill.lab import Lab
from unidle.errors import UnidleError

HOSTS = {"n1": 2, "n2": 1, "n3": 1}  # CPU devices: as many as the job has ranks, so that it needs all three
PORT = 7411
DEADLINE_S = 10
LIMIT_S = 170.0
"""For the whole demo."""


class HostsDemo(FollowedDemo):
    """The processes of the demo, and what their log shows."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        super().__init__(place, place / "demo.db", LIMIT_S)
        self._stack = stack
        try:
            self.lab = Lab(["hub", *HOSTS])
        except UnidleError as error:
            sys.exit(f"demo: {error}")
        stack.callback(self.lab.close)

    def start(self, node: str, *words: str) -> None:
        """``unidle`` in the network of a node; its output goes to a file of the demo's directory."""
        name = f"{words[0]}-{node}"
        output = self._stack.enter_context((self.place / f"{name}.log").open("wb"))
        command = [*self.inside(node), *unidle(*words)]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(),
            start_new_session=True,
        )  # fmt: skip
        self._stack.callback(ended, child)

    def inside(self, node: str) -> list[str]:
        """A command with these words before it runs in the network of a node."""
        return ["nsenter", f"--net=/run/netns/{self.lab.space(node)}"]


def main() -> None:
    argparse.ArgumentParser(prog="scripts/demo_hosts.py", description=__doc__).parse_args()
    place = place_with_gpt("hosts-")
    with ExitStack() as stack:
        demo = HostsDemo(place, stack)
        code = played(demo)
    demo.tell_end()
    sys.exit(code)


def joined(demo: HostsDemo) -> None:
    """A controller, and the hosts that join it."""
    address = f"{demo.lab.address('hub')}:{PORT}"
    times = ("--deadline", f"{DEADLINE_S}s", "--progress", "off")
    demo.start("hub", "up", "--store", str(demo.store), "--listen", address, *times)
    token = Path(f"{demo.store}.d") / "hub" / "join"
    waited(token.exists, "the controller listens")
    tell(f"the controller listens on {address}; {len(HOSTS)} hosts join")
    for node, devices in HOSTS.items():
        own = ("--node", node, "--cpu-devices", str(devices), "--state", str(demo.place / node))
        demo.start(node, "agent", "--join", address, "--token-file", str(token), *own)
    demo.until("all hosts have joined", lambda view: {node.id for node in view.fleet.nodes} == set(HOSTS))
    subprocess.run([*unidle("guard", "nodes"), "--store", str(demo.store)], check=False)


def played(demo: HostsDemo) -> int:
    """The demo itself; its exit code."""
    joined(demo)
    file = demo.place / "gpt" / "job.yaml"
    words = [*unidle("submit"), str(file), "--json", "--store", str(demo.store)]
    told = subprocess.run(words, check=True, env=environment(), stdout=subprocess.PIPE).stdout
    demo.job = json.loads(told)["job"]
    steps = steps_of(file)

    tell(f"4 ranks train a small GPT over {len(HOSTS)} hosts; at step {steps // 4} one of them is killed")
    job = demo.trained_to(1, steps // 4)
    pid = pid_of(demo, job.attempts[-1].places[2].node, 2)
    os.kill(pid, signal.SIGKILL)
    tell(f"kill -9 {pid}: rank 2, on {job.attempts[-1].places[2].node}")

    demo.trained_to(2, steps // 2 + 10)
    tell(
        f"the cable of n3 is pulled: its ranks are silent, and count as lost after {DEADLINE_S} s, when its box has ended them"
    )
    demo.lab.cut("n3")
    demo.lost("n3")
    demo.lab.mend("n3")
    tell("the cable is back: n3 joins again by itself, and the job continues from its newest checkpoint")
    demo.until("the job has ended", lambda view: view.jobs[demo.job].terminal)
    return checked(demo)


def pid_of(demo: HostsDemo, host: str, rank: int) -> int:
    """The process of a rank of the first attempt, as its journal on the host says."""
    [journal] = (demo.place / host).glob(f"**/{demo.job}/1/rank{rank}/journal.jsonl")
    return next(int(mark["pid"]) for mark in marks(journal) if mark["k"] == "spawn")


def checked(demo: HostsDemo) -> int:
    """What the log and the ledger say in the end; 0 where all of it holds."""
    store = ("--store", str(demo.store))
    code = 0
    for words in (
        ("explain", demo.job),
        ("ledger", "--job", demo.job),
        ("ledger", "--check"),
        ("logs", demo.job, "--tail", "4"),
        ("store", "check"),
    ):
        tell("unidle " + " ".join(words))
        here = [] if words[0] != "logs" else demo.inside("hub")  # it asks the hosts, by way of the controller
        code = subprocess.run([*here, *unidle(*words), *store], check=False).returncode or code
    return demo.end(code)


def unidle(*words: str) -> list[str]:
    return [sys.executable, "-m", "unidle", *words]


def environment() -> dict[str, str]:
    """With `python` as the one next to unidle, which has PyTorch."""
    path = os.environ.get("PATH", os.defpath)
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}"}


def waited(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 30
    while not holds():
        if time.monotonic() > end_s:
            sys.exit(f"demo: it took too long until {what}")
        time.sleep(0.05)


def ended(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL where that is not enough."""
    child.terminate()
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
