"""What the kernel knows of the connections between ranks, on real links that are cut, delayed and narrowed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import needs
from engine_local.local_gangs import python
from unidle.drill.lab import Lab
from unidle.engine.local.vitals import tcp
from unidle.engine.local.vitals.reachability import Reachability
from unidle.engine.local.vitals.tcp import Connections
from unidle.jobs.vitals import LinkVitals
from waiting import wait_until

S = 1_000_000_000
LISTENS = """
import socket, threading
server = socket.create_server((sys.argv[1], 5000)); print("up", flush=True)
def serve(c):
    while (got := c.recv(65536)): c.sendall(b"y")
while True: threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""
SENDS = """
import socket, time
c = socket.create_connection((sys.argv[1], 5000)); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); print("up", flush=True)
while True:
    c.sendall(b"x" * int(sys.argv[2])); c.recv(65536); time.sleep(0.05)
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab(("n1", "n2", "n3"), tag=f"uc{os.getpid()}")
    yield made
    made.close()


@contextmanager
def talking(lab: Lab, message_bytes: int = 10) -> Iterator[dict[int, int]]:
    """Rank 0 on n1; ranks 1 and 2, on n2 and n3, send to it. Rank -> process."""
    programs = [
        ("n1", LISTENS, lab.address("n1")), ("n2", SENDS, lab.address("n1")), ("n3", SENDS, lab.address("n1")),
    ]  # fmt: skip
    children: list[subprocess.Popen[bytes]] = []
    try:
        for node, code, address in programs:
            command = [
                "ip",
                "netns",
                "exec",
                lab.space(node),
                *python(f"import sys\n{code}"),
                address,
                str(message_bytes),
            ]
            children.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            out = children[-1].stdout
            assert out is not None and out.readline() == b"up\n"
        yield {rank: child.pid for rank, child in enumerate(children)}
    finally:
        for child in children:
            child.kill()
            child.communicate()


def read(seen: Connections, pids: dict[int, int], seconds: float = 0.5) -> dict[tuple[int, int], LinkVitals]:
    """What is between two ranks, by sender and receiver, in the next moment."""
    time.sleep(seconds)
    links = seen.read(pids, int(seconds * S))
    return {(rank, link.peer): link for rank, mine in links.items() for link in mine}


@needs.shaping
def test_a_delayed_link_is_told_from_one_that_is_not(lab: Lab) -> None:
    with talking(lab) as pids:
        seen = Connections()
        read(seen, pids)
        lab.delay("n1", "n2", 30)
        wait_until(lambda: read(seen, pids)[1, 0].rtt_ns > S // 20, 60, "the round trip to be longer")
        links = read(seen, pids, 1.0)
        assert links[2, 0].rtt_ns < S // 50
        assert links[1, 0].busy_ns > 4 * links[2, 0].busy_ns
        assert not links[1, 0].stuck


@needs.shaping
def test_on_a_narrow_link_data_is_on_its_way_all_the_time(lab: Lab) -> None:
    with talking(lab, 100_000) as pids:
        lab.limit("n1", "n2", 1_000_000)
        seen = Connections()
        read(seen, pids)
        wait_until(
            lambda: read(seen, pids).get((1, 0), LinkVitals(0)).busy_ns > S * 45 // 100, 60, "a busy link"
        )
        links = read(seen, pids)
        assert links[2, 0].busy_ns < S // 5


@needs.shaping
@pytest.mark.parametrize("copied", [True, False], ids=["sockets copied", "connections listed"])
def test_what_a_cut_link_holds_up_is_seen_at_its_sender(
    lab: Lab, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not copied:
        refuse_copies(monkeypatch)
    with talking(lab) as pids:
        seen = Connections()
        assert not any(link.stuck for link in read(seen, pids).values())
        lab.cut("n2")
        stuck = wait_until(
            lambda: {ends for ends, link in read(seen, pids).items() if link.stuck}, 60, "what is stuck"
        )
        assert stuck <= {(1, 0), (0, 1)}  # an answer may have been on its way when the link was cut


@needs.shaping
@pytest.mark.parametrize(
    ("cut", "fails"),
    [(("n2",), {("n1", "n2"), ("n2", "n3")}), (("n1", "n3"), {("n1", "n3")}), ((), set())],
    ids=["node", "link", "nothing"],
)
def test_nodes_are_asked_whom_they_reach(lab: Lab, cut: tuple[str, ...], fails: set[tuple[str, str]]) -> None:
    reach = Reachability(
        {name: lab.space(name) for name in lab.names}, {name: lab.address(name) for name in lab.names}
    )
    if cut:
        lab.cut(*cut)
    reach.ask(set(lab.names), ())
    wait_until(lambda: any(reach.answer()), 60, "the answers")
    links = {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}
    assert reach.answer() == (links - fails, fails)


def refuse_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who may not trace the ranks."""

    def refused(_sockets: tcp.Sockets) -> dict[int, tcp.TcpState]:
        raise tcp.NotAllowed

    monkeypatch.setattr(tcp.Sockets, "read", refused)


@needs.root
def test_who_may_not_copy_sockets_of_a_process_is_told_so(tmp_path: Path) -> None:
    """A process of root's with a socket, seen by nobody's."""
    looks = (
        "import os, sys, unidle.engine.local.vitals.tcp as s\n"
        "s.inodes_of = lambda pid: {1: 3}\n"
        "os.setresuid(65534, 65534, 65534)\n"
        f"try: s.Sockets({os.getpid()}).read()\n"
        "except s.NotAllowed: print('not allowed')"
    )
    done = subprocess.run([sys.executable, "-c", looks], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "not allowed\n", done.stderr


def test_connections_are_followed_while_others_come_and_go() -> None:
    """What a number stands for changes; each reading says what there is of those that were listed, or lists anew."""
    with socket.create_server(("127.0.0.1", 0)) as server, sockets_of_this_process() as seen:
        assert list(seen.read()) == []
        first = socket.create_connection(server.getsockname())
        other = server.accept()[0]
        ends = {inode(first), inode(other)}
        assert seen.read().keys() == ends
        first.sendall(b"x" * 1000)
        wait_until(lambda: seen.read()[inode(first)].acked_bytes >= 1000, 60, "the bytes to be acknowledged")
        number = first.fileno()
        second = socket.create_connection(server.getsockname())
        os.dup2(second.fileno(), number)  # another connection under the same number
        found = seen.read()
        assert found.keys() == {inode(other), inode(second)} or found.keys() == {inode(second)}
        assert found[inode(second)].there == server.getsockname()
        for one in (first, second, other):
            one.close()
        assert seen.read() == {}


@contextmanager
def sockets_of_this_process() -> Iterator[tcp.Sockets]:
    seen = tcp.Sockets(os.getpid())
    try:
        yield seen
    finally:
        seen.close()


def inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def test_ranks_on_one_machine_know_each_other_by_loopback() -> None:
    with subprocess.Popen([*python(f"import sys\n{LISTENS}"), "127.0.0.1"], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == b"up\n"
            with subprocess.Popen(
                [*python(f"import sys\n{SENDS}"), "127.0.0.1", "10"], stdout=subprocess.PIPE
            ) as client:
                assert client.stdout is not None and client.stdout.readline() == b"up\n"
                pids = {0: server.pid, 1: client.pid}
                seen = Connections()
                read(seen, pids)
                links = read(seen, pids)
                client.kill()
            assert set(links) == {(0, 1), (1, 0)}
        finally:
            server.kill()
