"""Faults of processes, disks, clocks and controllers. Each makes one fault on a gang, and returns how the gang ended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from host_faults.network_faults import finished, nodes_of
from host_faults.rig import HOSTS, PORT, WITHIN_S, Rig, rig_of
from places import fill
from unidle.engine.local.ranks import netns
from unidle.engine.local.ranks.rundir import JOURNAL, SUPERVISOR
from unidle.events import types as ev
from unidle.store.open import open_store

DISK_BYTES = 8 << 20
HELD = 4  # exit code where another controller has the store


def killed(rig: Rig, dice: random.Random, number: int) -> str:
    """A box, an agent or the controller is killed while a gang trains, and comes back."""
    name = f"killed-{number}"
    job = rig.submit(name)
    rig.trains(job)
    node = dice.choice(nodes_of(rig, job))
    what = ("box", "agent", "controller")[number % 3]
    if what == "box":
        rig.kill_pid(rig.until(lambda: rig.box_pid(node, job), "the box"))
        rig.until(lambda: rig.box_pid(node, job), "the next box")
    elif what == "agent":
        rig.kill_agent(node)
        rig.join(node)
    else:
        rig.kill_controller()
        rig.serve()
    rig.joined()
    return f"{what}: {finished(rig, name, job)}"


# -- disks -----------------------------------------------------------------------------------------


@contextmanager
def rig_with_small_disks(place: Path) -> Iterator[Rig]:
    """Each host's state directory is a file system of its own, of 8 MiB."""
    mounted = []
    try:
        for node in HOSTS:
            (place / node).mkdir(parents=True, mode=0o700)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "unidle", str(place / node)],
                check=True,
            )
            mounted.append(place / node)
        with rig_of(place) as rig:
            yield rig
    finally:
        for each in mounted:
            subprocess.run(["umount", "-l", str(each)], check=False)


def full_disk(rig: Rig, dice: random.Random, number: int) -> str:
    """The disk of a host is full before a gang starts there, or while it trains, and is emptied again."""
    name = f"full-{number}"
    node = dice.choice(HOSTS)
    filler = rig.place / node / "filler"
    before = number % 2 == 0
    if before:
        fill(filler)
    job = rig.submit(name)
    if before:
        rig.until(lambda: (found := rig.job(job)) is not None and found.attempts, "a first attempt")
        time.sleep(dice.uniform(0, 10))
    else:
        rig.trains(job)
        fill(filler)
        time.sleep(dice.uniform(1, 5))
        rank = dice.choice(rig.record("starts", job))
        if dice.random() < 0.5:
            os.kill(rank["pid"], signal.SIGKILL)  # its end has to be written all the same
            rig.until(
                lambda: (found := rig.job(job)) is not None and len(found.attempts) > 1,
                "the end of a rank on a full disk",
            )
    filler.unlink()
    rig.joined()
    rig.trains(job)
    return finished(rig, name, job)


def torn_journal(rig: Rig, dice: random.Random, number: int) -> str:
    """A host's box, supervisor and rank are gone as after a power cut, and the journal ends at any byte."""
    name = f"torn-{number}"
    job = rig.submit(name)
    rig.trains(job)
    node = dice.choice(nodes_of(rig, job))
    [place] = (rig.place / node / "boxes" / job).glob(f"runs/{job}/1/rank*")
    box, supervisor = rig.box_pid(node, job), json.loads((place / SUPERVISOR).read_text())["pid"]
    [rank] = [one["pid"] for one in rig.record("starts", job) if f"rank{one['rank']}" == place.name]
    rig.kill_agent(node)  # or it would start the next box at once
    for pid in (box, supervisor, rank):
        rig.kill_pid(pid)
    journal = place / JOURNAL
    os.truncate(journal, dice.randrange(journal.stat().st_size + 1))
    rig.join(node)
    rig.trains(job, 2)
    rig.joined()
    return finished(rig, name, job)


# -- clocks ----------------------------------------------------------------------------------------


@contextmanager
def rig_with_wrong_clocks(place: Path) -> Iterator[Rig]:
    """n1 is 10 minutes behind, n2 10 minutes ahead, and n3 steps by up to 10 minutes twice a second. They have started
    a day, an hour and a minute earlier than the controller's host."""
    place.mkdir(parents=True)
    library = place / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    offsets = {"n1": -600, "n2": 600, "n3": 0}
    for node, offset_s in offsets.items():
        (place / f"{node}.clock").write_bytes(struct.pack("q", offset_s * 10**9))
    stop = threading.Event()
    stepping = threading.Thread(target=_step, args=(place / "n3.clock", stop))
    stepping.start()
    try:
        with contextlib.ExitStack() as stack:
            rig = Rig(place, stack)
            for node, boot_s in zip(HOSTS, (86_400, 3_600, 60), strict=True):
                rig.env[node] = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(place / f"{node}.clock")}
                words = ["unshare", "-T", "--boottime", str(boot_s), "--monotonic", str(boot_s), "--"]
                rig.prefix[node] = [*words, sys.executable, "-m", "unidle"]
            rig.serve()
            for node in HOSTS:
                rig.join(node)
            rig.joined()
            yield rig
    finally:
        stop.set()
        stepping.join()


def _step(path: Path, stop: threading.Event) -> None:
    dice = random.Random(1)
    with path.open("r+b") as file:
        while not stop.wait(0.5):
            file.seek(0)
            file.write(struct.pack("q", dice.randrange(-600 * 10**9, 600 * 10**9)))
            file.flush()


def wrong_clocks(rig: Rig, dice: random.Random, number: int) -> str:
    """A gang starts, a rank of it is killed, a host is cut off and comes back."""
    name = f"clocks-{number}"
    job = rig.submit(name)
    rig.trains(job)
    os.kill(dice.choice(rig.record("starts", job))["pid"], signal.SIGKILL)
    rig.trains(job, 2)
    node = dice.choice(nodes_of(rig, job))
    rig.lab.cut(node)
    rig.trains(job, 3)
    rig.lab.mend(node)
    rig.joined()
    ended = finished(rig, name, job)
    worst_s = _worst_time_s(rig)
    if worst_s > 5:
        raise AssertionError(
            f"a mark is {worst_s:.1f} s from when the log got it, on hosts whose clocks are wrong"
        )
    return ended


def _worst_time_s(rig: Rig) -> float:
    """How far a mark's time is from that of its event, of marks that came while the host was connected."""
    store = open_store(str(rig.store), create=False, read_only=True)
    try:
        worst_ns = 0
        for stored in store.read():
            event = ev.decode(stored.kind, stored.body)
            if isinstance(event, ev.RankSaw):
                worst_ns = max([worst_ns, *(mark.t - stored.time_ns for mark in event.marks)])
                if event.marks and event.marks[-1].k in ("exit", "lost", "spawn"):
                    worst_ns = max(worst_ns, stored.time_ns - event.marks[-1].t)
    finally:
        store.close()
    return worst_ns / 1e9


# -- controllers -----------------------------------------------------------------------------------


def rig_with_switch(place: Path) -> AbstractContextManager[Rig]:
    """Hosts that dial an address which can be given to another controller, as one machine takes that of another. They wait for
    30 s for a controller: one that lives and is stopped keeps its store for 4 s."""
    from host_faults.hub_faults import rig_behind_proxy

    return rig_behind_proxy(place, 30)


def second_controller(rig: Rig, dice: random.Random, number: int) -> str:
    """Another controller is started on the store of one that lives; then that one is stopped for longer than its lease, another
    takes over its store and its address, and the first one continues."""
    name = f"two-{number}"
    job = rig.submit(name)
    rig.trains(job)
    rig.port += 10
    other = rig.serve(wait=False)
    assert other.wait(WITHIN_S) == HELD, rig.errors("hub")
    rig.controllers.remove(other)
    first = rig.controller
    rig.until(lambda: _stopped(rig, first), "the controller to be stopped outside of a transaction")
    rig.take_over()
    rig.proxy.hub = (rig.lab.address("hub"), rig.port)
    before = rig.steps(job)
    rig.until(lambda: rig.steps(job) > before + 20, "the gang to go on under the other controller")
    first.send_signal(signal.SIGCONT)
    assert first.wait(WITHIN_S) != 0, (
        "a controller whose store has another holder ended as if nothing were wrong"
    )
    rig.joined()
    return finished(rig, name, job)


def _stopped(rig: Rig, process: subprocess.Popen[bytes]) -> bool:
    """Stop a controller; False, and it continues, where it holds the lock of SQLite, which no one else gets then."""
    process.send_signal(signal.SIGSTOP)
    with contextlib.closing(sqlite3.connect(rig.store, timeout=0.5, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
            return False
    return True


def port_taken(rig: Rig, dice: random.Random, number: int) -> str:
    """A controller is killed, and another program has its port when it starts again."""
    import socket

    name = f"port-{number}"
    job = rig.submit(name)
    rig.trains(job)
    rig.kill_controller()
    address = (rig.lab.address("hub"), PORT)

    def taken() -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen()
        return sock

    with netns.within(rig.lab.space("hub"), taken):
        other = rig.serve(wait=False)
        assert other.wait(WITHIN_S) == 3, rig.errors("hub")
        rig.controllers.remove(other)
    rig.serve()
    rig.joined()
    return finished(rig, name, job)
