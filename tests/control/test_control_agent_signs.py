"""What agents saw of faults, as the controller takes it in: for their own node alone, and judged where it was seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sim.worlds import S
from unidle.control.hosts import AgentSigns
from unidle.control.nodes.detectors import SETTLE_NS, Detectors
from unidle.control.nodes.host_storage import HostStorage
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.guard.log import LogLine, Reader
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset, Peer
from unidle.probe.detector import Detection, DetectorStatus
from unidle.probe.node_detectors import LOG
from view.telling import Telling

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, some text"
ABORTED = "EXT4-fs error (device sdz1): ext4_journal_check_start:83: comm x: Detected aborted journal"
AHEAD_NS = 7 * S


class Offsets:
    """A hub's answer about the clocks of its peers: they are seven seconds behind."""

    def offset(self, _peer: int) -> ClockOffset:
        return ClockOffset(AHEAD_NS, 0)


def unasked(*_: object) -> None:
    raise AssertionError("no agent has to be asked")


def peer(kind: str = "agent", node: str = "n0") -> Peer:
    return msgspec.convert(
        {"id": 1, "kind": kind, "node": node, "job": "", "boot": "", "address": "", "hello": {"v": 1, "kind": kind, "node": node, "f": "hello"}},
        Peer,
    )  # fmt: skip


def seen(*found: Detection, statuses: tuple[DetectorStatus, ...] = ()) -> frames.Seen:
    body = {
        "detections": [*map(msgspec.to_builtins, found)],
        "statuses": [*map(msgspec.to_builtins, statuses)],
    }
    return frames.Seen("signs", body)


def sign(text: str, node: str = "n0", device: str = "n0/0", source: str = "/dev/kmsg") -> Detection:
    finding = Reader(repeats=True).read(LogLine(1, f"[  100.000000] {text}".encode()))
    assert finding is not None
    return Detection(node, LOG, device, finding, 93 * S, 93 * S, source)


def test_signs_are_of_the_agents_node_and_in_the_controllers_time() -> None:
    signs = AgentSigns(Offsets())
    signs.hear(peer(), seen(sign(XID, node="n1"), statuses=(DetectorStatus("n1", LOG, "it cannot"),)))
    [found], [status] = signs.take(logged=True)
    assert (found.node, found.onset_ns, found.signal_ns) == ("n0", 100 * S, 100 * S)
    assert status == DetectorStatus("n0", LOG, "it cannot")
    assert signs.take(logged=True)[0] == []


@pytest.mark.parametrize(
    ("who", "what"),
    [
        (peer("box"), seen(sign(XID))),
        (peer("reader"), seen(sign(XID))),
        (peer(), seen(sign(XID, device="n1/0"))),
        (peer(), frames.Seen("vitals", {"detections": [msgspec.to_builtins(sign(XID))]})),
        (peer(), frames.Seen("signs", {"detections": [{"node": 3}]})),
        (peer(), frames.Seen("signs", {"detections": "none"})),
    ],
)
def test_no_other_peer_reports_faults_and_what_is_no_sign_is_passed_over(
    who: Peer, what: frames.Seen
) -> None:
    signs = AgentSigns(Offsets())
    signs.hear(who, what)
    assert signs.take(logged=True) == ([], [])


@pytest.mark.parametrize(("unused", "action"), [(False, "drain"), (True, "watch")])
def test_whether_a_failed_file_system_is_used_is_what_its_host_says(
    tmp_path: Path, unused: bool, action: str
) -> None:
    """Nothing of this machine is on a device of that name, which proves nothing about the host's."""
    signs, telling = AgentSigns(Offsets()), Telling(2, 2).at(100)
    detectors = Detectors(
        Fleet(), tmp_path / "watch.json", 0, watcher=signs, storage=HostStorage(unasked, Offsets())
    )
    signs.hear(peer(), seen(replace(sign(ABORTED, device=""), unused=unused)))
    found: list[ev.Event] = []
    for at_ns in (100 * S, 100 * S + SETTLE_NS):
        for event in detectors.take(telling.view, at_ns):
            telling.tell(event)
            found.append(event)
    assert [event.action for event in found if isinstance(event, ev.FaultSeen)] == [action]
    assert not (tmp_path / "mounts").exists()
    detectors.close()
