"""What ranks print comes to the hub: all of it before the box forgets an attempt, once, and of much only the newest."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from box.small_hub import Peer, RealBox, SmallHub
from unidle import wire
from unidle.box.output_feed import KEEP_BYTES
from waiting import wait_until


@contextmanager
def hub_and_printing_box(place: Path) -> Iterator[tuple[SmallHub, RealBox]]:
    hub = SmallHub(place)
    box = RealBox(place, hub)
    try:
        yield hub, box.run("--output", stdout=subprocess.DEVNULL)
    finally:
        box.close()
        hub.vanish()


def printed(peer: Peer, rank: int = 0) -> list[tuple[int, bytes, int | None]]:
    """Of the frames of a rank: where it begins, its bytes, and how many lines were before it."""
    bodies = [
        frame["body"]
        for frame in list(peer.frames)
        if frame["f"] == wire.SEEN and frame["what"] == wire.OUTPUT and frame["body"]["rank"] == rank
    ]
    return [(one["at"], _data(one), one.get("lines")) for one in bodies]


def _data(body: dict[str, Any]) -> bytes:
    return b"".join(base64.b64decode(text) for _, text in body["parts"])


def test_all_that_ranks_printed_comes_before_the_box_ends(tmp_path: Path) -> None:
    with hub_and_printing_box(tmp_path) as (hub, box):
        peer = hub.peer().welcome()
        peer.start(1, "import sys; print('one'); sys.stdout.write('no end')", ranks=2)
        hub.end_of(1, 0), hub.end_of(1, 1)
        peer.send(f=wire.END, fence=peer.fence)
        assert box.process is not None
        assert box.process.wait(60) == 0
        wait_until(lambda: peer.closed, what="the end of the connection")
        for rank in (0, 1):
            assert b"".join(data for _, data, _ in printed(peer, rank)) == b"one\nno end"


def test_an_attempt_is_not_released_before_all_of_its_output_was_sent(tmp_path: Path) -> None:
    with hub_and_printing_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, "print('x' * 100 + '\\n', end='')" + "; print('y' * 1_000_000)" * 2)
        hub.end_of(1)
        wait_until(lambda: peer.ask(wire.RELEASE, attempt=1)["ok"], what="the release")
        assert printed(peer)[-1][1].endswith(b"y\n")


def test_output_of_a_running_rank_comes_while_it_runs(tmp_path: Path) -> None:
    with hub_and_printing_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, "import time; print('here', flush=True); time.sleep(600)")
        wait_until(lambda: printed(peer) == [(0, b"here\n", None)], what="its output")


def test_of_much_output_the_newest_comes_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    with hub_and_printing_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, "print('\\n'.join(f'line {n:06}' for n in range(300_000)))")
        hub.end_of(1)
        wait_until(lambda: printed(peer)[-1][1].endswith(b"line 299999\n"), what="the last line")
        parts = printed(peer)
        assert sum(len(data) for _, data, _ in parts) < 6 * KEEP_BYTES < 300_000 * 12
        for begin, data, lines in parts:
            if lines is not None:
                assert begin == lines * 12
                assert data.startswith(b"line %06d\n" % lines)
        assert any(lines is not None for _, _, lines in parts)


def test_the_next_hub_gets_what_it_has_not(tmp_path: Path) -> None:
    with hub_and_printing_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, "import time; print('one\\ntwo', flush=True); time.sleep(600)")
        wait_until(lambda: printed(peer), what="its output")
        peer.close()
        again = hub.peer(2).welcome()
        again.send(f=wire.RESUME, attempt=1, known={"0": 0}, output={"0": 4})
        wait_until(lambda: printed(again) == [(4, b"two\n", None)], what="the rest of it")


def test_a_hub_that_does_not_ask_for_output_gets_none(tmp_path: Path) -> None:
    with hub_and_printing_box(tmp_path) as (hub, _):
        peer = hub.peer().welcome()
        peer.start(1, "import time; print('one', flush=True); time.sleep(600)")
        wait_until(lambda: printed(peer), what="its output")
        peer.close()
        again = hub.peer(2).welcome()
        again.send(f=wire.RESUME, attempt=1, known={"0": 0})
        again.ask(wire.STOP, attempt=1, ranks=[0], grace_ns=0)
        hub.end_of(1)
        assert not printed(again)
