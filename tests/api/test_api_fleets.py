"""CPU devices of a machine without a GPU: as many as there are cores, and as its jobs need."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import needs
from sim.worlds import fleet_of
from unidle.api.fleets import (
    MOST_CPU_DEVICES,
    find_fleet,
    find_fleet_and_channels,
    refuse_impossible,
    refuse_to_queue,
    with_cpu_devices,
    with_devices_of_jobs,
)
from unidle.errors import CannotRun
from unidle.events import types as ev
from unidle.fleet import HOSTS, Fleet
from unidle.fleet.labels import HOST_KEY
from unidle.jobs import JobSpec, RankPlace, Reason, Requests, Share
from unidle.jobs.pod import NO_CPUS
from unidle.store.memory import MemoryStore
from unidle.store.protocol import NewEvent, Store

CORES = len(os.sched_getaffinity(0))
WHY = Reason("test", "because")

pytestmark = pytest.mark.skipif(needs.gpus() > 0, reason="GPU: only where there is none")


def count(fleet: Fleet) -> int:
    return len(fleet.devices())


def test_there_are_as_many_as_cores_and_as_the_job_needs() -> None:
    assert count(find_fleet(None, None)) == CORES
    assert count(find_fleet_and_channels(None, None, CORES + 3)[0]) == CORES + 3
    assert count(find_fleet_and_channels(None, None, 1)[0]) == CORES
    assert count(find_fleet_and_channels(None, 1, CORES + 3)[0]) == 1  # as the user says
    assert with_cpu_devices(fleet_of(2, kind="gpu"), 9) == fleet_of(2, kind="gpu")


def test_a_gpu_job_on_a_machine_without_one_is_not_sent_to_more_cpu_devices() -> None:
    for spec, words in (
        (
            JobSpec(("train",), device="gpu"),
            r"; `unidle doctor` shows why no GPU was found; or use a fleet file",
        ),
        (JobSpec(("train",), ranks=9), r"; use fewer ranks or devices, `--cpu-devices 9`, or a fleet file"),
        (JobSpec(("train",), ranks=MOST_CPU_DEVICES + 1), r"; use fewer ranks or devices, or a fleet file"),
    ):
        with pytest.raises(CannotRun, match=words):
            refuse_impossible(spec, find_fleet(None, 2))


def store_with(*events: ev.Event) -> Store:
    store = MemoryStore()
    lease = store.acquire("test")
    store.append(lease, [NewEvent(k + 1, "test", k, *ev.encode(event)) for k, event in enumerate(events)])
    return store


def test_jobs_that_began_keep_their_devices_under_the_next_controller() -> None:
    ranks = CORES + 2
    places = tuple(RankPlace(k, "n", (f"local/{k}",)) for k in range(ranks))
    submitted = ev.JobSubmitted("j", JobSpec(("train",), ranks=ranks))
    machine = find_fleet(None, None)
    waiting = store_with(ev.ControllerStarted("test", 1, 1), submitted)
    assert count(with_devices_of_jobs(machine, waiting)) == CORES  # no fiction for what only waits
    machine_seen, placed = ev.FleetSeen(find_fleet(None, ranks)), ev.AttemptPlaced("j", 1, places, WHY)
    begun = store_with(ev.ControllerStarted("test", 1, 1), machine_seen, submitted, placed)
    assert count(with_devices_of_jobs(machine, begun)) == ranks


@pytest.mark.parametrize("nodes", [True, False])
def test_parts_of_devices_are_refused_where_nodes_join_with_whole_ones(nodes: bool) -> None:
    hosts = replace(fleet_of(2) if nodes else Fleet(), source=HOSTS)
    spec = JobSpec(("true",), share=Share(compute_ppm=500_000))
    with pytest.raises(CannotRun, match="no device of the hosts may be cut") as refused:
        refuse_to_queue(spec, hosts, hold=False)
    assert (refused.value.field, "request whole devices" in refused.value.remedy) == ("share", True)
    assert "no device of the hosts may be cut" in str(refuse_to_queue(spec, hosts, hold=True))
    assert refuse_to_queue(JobSpec(("true",)), hosts, hold=False) is None or not nodes


def test_a_job_without_cpus_has_a_note_on_a_cluster_alone() -> None:
    plain = fleet_of(2)
    cluster = replace(plain, nodes=tuple(replace(node, labels={HOST_KEY: node.id}) for node in plain.nodes))
    spec = JobSpec(("true",))
    assert refuse_to_queue(spec, cluster, hold=False) == NO_CPUS
    assert refuse_to_queue(spec, plain, hold=False) is None
    assert refuse_to_queue(replace(spec, requests=Requests(cpus=0.5)), cluster, hold=False) is None
