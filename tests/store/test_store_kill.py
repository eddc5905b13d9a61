"""Writers killed with -9 in the middle of appends, and many processes on one store."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from unidle.store.tools import check

APPEND = """
import sys
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
store = open_store(sys.argv[1], create=True)
lease = store.acquire("test")
batch, seq = int(sys.argv[2]), store.last()[0]
while True:
    events = [NewEvent(n, "s", n, "k", b'{"n":%d,"fill":"%s"}' % (n, b"x" * 200)) for n in range(seq + 1, seq + 1 + batch)]
    seq = store.append(lease, events)
    sys.stdout.write(f"{seq}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(durable, batch):
    dice, known = random.Random(batch), 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", APPEND, durable.address, str(batch)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(dice.randrange(1, 9))]
        killer = threading.Timer(dice.random() * 0.01, os.kill, [process.pid, signal.SIGKILL])
        killer.start()
        acknowledged += process.stdout.readlines()
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        killer.join()
        whole = [int(line) for line in acknowledged if line.endswith(b"\n")]
        store = durable.open(create=False)
        events = list(store.read())
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert all(event.body.startswith(b'{"n":%d,' % event.seq) for event in events)
        assert len(events) >= max(whole, default=known)
        assert len(events) % batch == 0  # no batch is half there
        assert check(store).ok
        known = len(events)
        store.close()
    assert known


ASK = """
import sys
from unidle.store.open import open_store
store = open_store(sys.argv[1], create=False)
for n in range(15):
    print(store.request("submit", b'{"n":%d}' % n), flush=True)
store.close()
"""


def test_clients_ask_while_the_writer_appends(durable, event):
    """The writer never pauses, and nobody waits for long: SQLite's own waiting would keep them out for seconds."""
    writer = durable.open()
    lease = writer.acquire("test")
    with ExitStack() as ends:
        clients = [
            ends.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ASK, durable.address], stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(3)
        ]
        for client in clients:
            ends.callback(client.kill)
        taken, n = [], 0
        while len(taken) < 45:
            done = [request.id for request in writer.requests()]
            n += 1
            writer.append(lease, [event(n)], done_requests=done)
            taken += done
            assert n < 100_000
        acknowledged = [int(line) for client in clients for line in client.communicate()[0].split()]
    assert [client.returncode for client in clients] == [0, 0, 0]
    assert sorted(taken) == sorted(acknowledged) == sorted(set(taken))
    assert writer.requests() == []


MAKE = """
import sys
from unidle.store.open import open_store
sys.stdin.readline()
store = open_store(sys.argv[1], create=True)
print(store.last()[0], flush=True)
store.close()
"""


def test_many_processes_may_make_the_same_store_at_once(durable):
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE, durable.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("\n")
        maker.stdin.flush()
    ends = [maker.communicate() for maker in makers]
    assert [maker.returncode for maker in makers] == [0] * 8, ends
    assert [out.strip() for out, _ in ends] == ["0"] * 8
    assert check(durable.open(create=False)).ok
