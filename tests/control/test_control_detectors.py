"""From what detectors heard to events: one for each fault, on what it concerns, and whom it hit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from sim.worlds import S
from unidle.control.nodes.detectors import SAME_NS, SETTLE_NS, Detectors, wanted_of
from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.fleet import Fleet
from unidle.fleet.policies import KERNEL_LOG_VARIABLE
from unidle.guard.log import LogLine, Reader
from unidle.guard.log.model import Finding
from unidle.jobs import Reason
from unidle.probe.detector import Detection, DetectorStatus
from unidle.probe.node_detectors import GPUS, LOG, MACHINE
from unidle.probe.watcher import Watcher
from unidle.view.incidents import incidents
from unidle.view.watching import NO_SOURCE, not_watched
from view.telling import Telling

XID = "NVRM: Xid (PCI:0000:3b:00): {code}, pid={pid}, name=python, some text"
ASKED = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
ABORTED = "EXT4-fs error (device {device}): ext4_journal_check_start:83: comm x: Detected aborted journal"


class Said(Watcher):
    """A watcher whose detectors say what the test tells them."""

    def __init__(self) -> None:
        super().__init__((), Path("/nonexistent/watch.json"), 0)
        self.heard: list[Detection] = []
        self.sights: list[DetectorStatus] = []
        self.logged: list[bool] = []

    def take(self, *, logged: bool = True) -> tuple[list[Detection], list[DetectorStatus]]:
        self.logged.append(logged)
        heard, self.heard = self.heard, []
        return heard, self.sights


class World:
    """A view of two nodes with two devices each, and detectors; times in seconds."""

    def __init__(self) -> None:
        self.telling = Telling(2, 2).at(100)
        self.said = Said()
        self.detectors = Detectors(Fleet(), Path("/nonexistent/watch.json"), 0, watcher=self.said)
        self._readers: dict[str, Reader] = {}
        self._numbers = itertools.count(1)

    def line(self, text: str, device: str = "n0/0", at_s: float = 100, pids: tuple[int, ...] = ()) -> World:
        node = device.partition("/")[0]
        reader = self._readers.setdefault(node, Reader(repeats=True))
        finding = reader.read(LogLine(next(self._numbers), f"[{at_s:12.6f}] {text}".encode()))
        assert finding is not None
        at_ns = int(at_s * S)
        self.said.heard.append(
            Detection(
                node, LOG, device if "/" in device else "", finding, at_ns, at_ns, "kern.log", pids=pids
            )
        )
        return self

    def take(self, at_s: float) -> list[ev.Event]:
        """What follows at a time, applied as the controller does."""
        self.telling.at(at_s)
        found = []
        for event in self.detectors.take(self.telling.view, int(at_s * S)):
            self.telling.tell(event)
            found.append(event)
        return found

    def job(self, name: str = "job", *slices: str) -> World:
        self.telling.submit(name).place(name, *(slices or ("n0/0",)))
        return self


def faults(found: list[ev.Event]) -> list[ev.FaultSeen]:
    return [event for event in found if isinstance(event, ev.FaultSeen)]


def test_the_drivers_own_verdict_decides_what_is_to_be_done() -> None:
    world = World().line(XID.format(code=119, pid=1)).line(ASKED, at_s=100.1)
    assert world.take(100.2) == [], "further lines of the same event are waited for"
    [fault] = faults(world.take(100 + SETTLE_NS / S))
    assert (fault.node, fault.device, fault.code, fault.action) == ("n0", "n0/0", 119, "reboot_node")
    assert " on line" not in fault.because.text and not fault.because.text.startswith("line")
    assert fault.because.figures["hardware"] == "0000:3b:00.0"


def test_a_verdict_that_comes_late_is_told_as_well() -> None:
    world = World().line(XID.format(code=119, pid=1))
    assert faults(world.take(101))[0].action == "reset_gpu"
    world.line(ASKED, at_s=103)
    assert [f.action for f in faults(world.take(104))] == ["reboot_node"]


def test_a_fault_that_is_told_again_and_again_is_one_and_later_another() -> None:
    world = World()
    told = 0
    for at_s in range(100, 400, 10):
        told += len(faults(world.line(XID.format(code=79, pid=1), at_s=at_s).take(at_s + 1)))
    assert told == 1
    world.line(XID.format(code=79, pid=1), at_s=400 + SAME_NS / S)
    assert len(faults(world.take(401 + SAME_NS / S))) == 1


def test_a_fault_after_the_return_of_its_node_is_another_one() -> None:
    world = World()
    assert len(faults(world.line(ABORTED.format(device="sda1"), "n0").take(101))) == 1
    world.telling.at(103).tell(ev.RemedySet("n0", "draining", Reason("fault", "it failed"), "check"))
    assert faults(world.line(ABORTED.format(device="sda1"), "n0", at_s=104).take(105)) == []
    world.telling.at(106).tell(ev.RemedySet("n0", "healthy", Reason("returned", "it is back"), ""))
    [fault] = faults(world.line(ABORTED.format(device="sda1"), "n0", at_s=107).take(108))
    assert fault.signal_ns == 107 * S


@pytest.mark.parametrize(
    "text",
    [
        XID.format(code=79, pid=1),
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "amdgpu 0000:3b:00.0: amdgpu: device lost from bus!",
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0xffff:1482)",
        "NVRM: rpcRmApiControl_GSP: GPU 0000:3b:00.0: NV_ERR_GPU_IS_LOST",
    ],
)
def test_a_loss_that_comes_again_after_the_return_of_its_node_counts(text: str) -> None:
    world = World()
    assert len(faults(world.line(text).take(101))) == 1
    world.telling.at(103).tell(ev.RemedySet("n0", "draining", Reason("fault", "it failed"), "check"))
    assert faults(world.line(text, at_s=104).take(105)) == []
    world.telling.at(106).tell(ev.RemedySet("n0", "healthy", Reason("returned", "it is back"), ""))
    found = faults(world.line(text, at_s=107).take(108))
    assert [(fault.signal_ns, fault.action) for fault in found] == [(107 * S, "reboot_node")]
    assert faults(world.line(text, at_s=109).take(110)) == []


def test_the_next_controller_does_not_tell_again_what_the_last_one_told() -> None:
    world = World().line(XID.format(code=79, pid=1))
    assert len(faults(world.take(101))) == 1
    world.detectors = Detectors(Fleet(), Path("/nonexistent/watch.json"), 0, watcher=world.said)
    world._readers.clear()
    world.line(XID.format(code=79, pid=1))
    assert world.take(103) == []


@pytest.mark.parametrize("text", [XID.format(code=45, pid=1), "python invoked oom-killer: gfp_mask=0xcc0"])
def test_a_symptom_makes_no_fault(text: str) -> None:
    world = World().job().line(text)
    assert world.take(101) == []


def test_two_devices_that_fail_at_once_are_two_faults() -> None:
    world = World().line(XID.format(code=48, pid=1))
    world.line(XID.format(code=48, pid=1).replace("3b", "5e"), device="n0/1")
    assert sorted(f.device for f in faults(world.take(101))) == ["n0/0", "n0/1"]


def test_two_links_of_a_node_that_fail_at_once_are_two_faults_and_the_next_controller_knows_both() -> None:
    world = World()

    def down() -> None:
        for card in ("mlx5_0 port 1", "mlx5_1 port 1"):
            lost = Finding(
                0, "nic", None, card, "culprit", "check_link", f"{card}: the link is down", rank=40
            )
            world.said.heard.append(Detection("n0", MACHINE, "", lost, 100 * S, 100 * S, "/sys"))

    down()
    assert [f.because.figures["hardware"] for f in faults(world.take(101))] == [
        "mlx5_0 port 1",
        "mlx5_1 port 1",
    ]
    world.detectors = Detectors(Fleet(), Path("/nonexistent/watch.json"), 0, watcher=world.said)
    down()
    assert faults(world.take(102)) == []


def test_a_fault_hits_the_jobs_on_its_device_and_no_other() -> None:
    world = World().job("a", "n0/0").job("b", "n0/1").job("c", "n1/0")
    found = world.line(XID.format(code=79, pid=1)).take(101)
    verdicts = [event for event in found if isinstance(event, ev.VerdictReached)]
    assert [(v.job, v.kind, v.rank, v.node, v.acts) for v in verdicts] == [("a", "gpu", 0, "n0", False)]
    assert world.telling.view.faults[0].jobs == ["a"]
    [incident] = incidents(world.telling.view)
    assert (incident.job, incident.kind, incident.signal_ns) == ("a", "gpu", 100 * S)


def test_a_fault_of_the_node_hits_all_jobs_on_it() -> None:
    world = World().job("a", "n0/0").job("b", "n0/1").job("c", "n1/0")
    found = world.line("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0", "n0").take(101)  # fmt: skip
    verdicts = [event for event in found if isinstance(event, ev.VerdictReached)]
    assert [(v.job, v.kind, v.rank) for v in verdicts] == [("a", "storage", None), ("b", "storage", None)]


def test_a_fault_without_a_job_is_an_incident_of_its_own() -> None:
    world = World().line(XID.format(code=79, pid=1))
    world.take(101)
    [incident] = incidents(world.telling.view)
    assert (incident.job, incident.attempt, incident.kind, incident.node, incident.device) == (
        None, None, "gpu", "n0", "n0/0",
    )  # fmt: skip
    assert incident.resumed_ns is None and incident.cost_micro == 0


@pytest.mark.parametrize(("pid", "device"), [(1, "n0"), (77, "n0/0")], ids=["by process", "by device"])
def test_what_a_job_did_itself_is_laid_on_it_and_not_on_the_node(pid: int, device: str) -> None:
    world = World().job("a", "n0/0").job("b", "n0/1")
    # the telling's ranks all have process 1: only one job may have it
    rank = world.telling.view.jobs.open["b"].attempts[0].ranks[0]
    rank.pid = 2
    found = world.line(XID.format(code=31, pid=pid), device, pids=(900, pid)).take(101)
    assert faults(found) == []
    [verdict] = found
    assert isinstance(verdict, ev.VerdictReached)
    assert (verdict.job, verdict.kind, verdict.acts) == ("a", "gpu", False)
    assert not world.telling.view.faults


def test_what_a_process_of_nobody_did_is_laid_on_nobody() -> None:
    world = World().job("a", "n0/1").line(XID.format(code=31, pid=5), "n0/0", pids=(5,))
    assert world.take(101) == []


def test_a_process_of_another_node_with_the_same_number_is_another_one() -> None:
    world = World().job("a", "n0/0").line(XID.format(code=31, pid=1), "n1", pids=(1,))
    assert world.take(101) == []


def test_a_rank_that_fails_by_its_device_is_one_incident_with_its_cost() -> None:
    world = World().job("a", "n0/0")
    world.telling.at(101).steps("a", 1, 5)
    world.line(XID.format(code=79, pid=1), at_s=110).take(111)
    world.telling.at(112).mark("a", 0, "exit", code=1)
    world.telling.tell(ev.AttemptEnded("a", 1, "failed", Reason("failed", "rank 0 exited 1")))
    [incident] = incidents(world.telling.view)
    assert (incident.kind, incident.rank, incident.onset_ns) == ("gpu", 0, 110 * S)
    assert incident.lost_steps == 5 and incident.device_ns > 0


def test_who_cannot_see_is_logged_once_and_the_node_is_not_watched() -> None:
    world = World()
    world.said.sights = [DetectorStatus("n0", LOG, "no leave to read"), DetectorStatus("n0", GPUS, "")]
    assert [(e.detector, e.why_not) for e in world.take(101) if isinstance(e, ev.WatchSet)] == [
        (LOG, "no leave to read"), (GPUS, ""),
    ]  # fmt: skip
    assert world.take(102) == []
    assert not_watched(world.telling.view, "n0") == "no leave to read"
    assert not_watched(world.telling.view, "n1") == NO_SOURCE
    world.said.sights = [DetectorStatus("n0", LOG, ""), DetectorStatus("n0", GPUS, "")]
    assert len(world.take(103)) == 1
    assert not_watched(world.telling.view, "n0") == ""
    world.telling.tell(ev.ControllerStopped("done"))
    assert "no controller" in not_watched(world.telling.view, "n0")


def test_positions_wait_for_what_is_not_logged_yet() -> None:
    world = World().line(XID.format(code=79, pid=1))
    world.take(100.1)
    world.take(100.2)
    world.take(101)
    world.take(102)
    assert world.said.logged == [True, False, False, True]


def detectors_of(*nodes: dict[str, object]) -> dict[str, list[str]]:
    fleet = fleet_from_mapping({"nodes": list(nodes)}, "fleet")
    wanted, static = wanted_of(fleet, 0)
    found: dict[str, list[str]] = {}
    for one in wanted:
        found.setdefault(one.node, []).append(one.name)
    for seen in static:
        found.setdefault(seen.node, []).append(f"{seen.detector}: {seen.why_not}")
    return found


CPU = {"count": 1, "kind": "cpu"}


def test_the_machines_own_signs_belong_to_its_only_node_or_to_whom_the_file_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = {"id": "a", "devices": CPU}
    monkeypatch.setenv(KERNEL_LOG_VARIABLE, "off")
    assert detectors_of(one) == {"a": [MACHINE, f"{LOG}: kernel log: switched off by {KERNEL_LOG_VARIABLE}"]}
    assert detectors_of({**one, "watch": {"kernel_log": "a.log"}}) == {"a": [LOG, MACHINE]}
    assert detectors_of(one, {"id": "b", "devices": CPU}) == {}
    monkeypatch.delenv(KERNEL_LOG_VARIABLE)
    assert detectors_of({"id": "a", "devices": CPU}) == {"a": [LOG, MACHINE]}
    assert detectors_of({"id": "a", "devices": CPU}, {"id": "b", "devices": CPU}) == {}
    assert detectors_of(
        {"id": "a", "devices": CPU, "watch": {"kernel_log": "kmsg"}},
        {"id": "b", "devices": CPU, "watch": {"kernel_log": "b.log"}},
        {"id": "c", "devices": {"count": 1, "kind": "gpu"}},
        {"id": "d", "devices": CPU, "watch": {"kernel_log": "off"}},
    ) == {
        "a": [LOG, MACHINE], "b": [LOG], "c": [GPUS, f"{LOG}: {NO_SOURCE}"],
        "d": [f"{LOG}: kernel log: switched off in the fleet file"],
    }  # fmt: skip


@pytest.mark.parametrize("source", ["/dev/kmsg", "journal"])
def test_a_failed_file_system_that_nothing_uses_is_reported_and_the_node_stays(source: str):
    world = World().line(ABORTED.format(device="loop4095"), "n0")
    world.said.heard = [replace(one, source=source) for one in world.said.heard]
    [fault] = faults(world.take(100 + SETTLE_NS / S))
    assert (fault.kind, fault.action) == ("fs", "watch")
    assert fault.because.text.endswith("nothing of the system, the store or a job is on it")
    assert world.telling.view.care.pending == {}


def test_a_failed_file_system_in_the_log_of_another_machine_takes_the_node_out():
    world = World().line(ABORTED.format(device="loop4095"), "n0")  # of kern.log: whose mounts are unknown
    [fault] = faults(world.take(100 + SETTLE_NS / S))
    assert fault.action == "drain" and "n0" in world.telling.view.care.pending
