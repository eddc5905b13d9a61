"""How the Job of a command of the site came to its end, by its pod; and where the hub's address is written. Pure."""

from __future__ import annotations

from typing import Any

from unidle.engine.hosts.timing import S
from unidle.engine.kube.hook_jobs import HOOK, NO_HOOKS, HookJobs, HookSettings, hook_job, job_name
from unidle.engine.kube.hub_address import AGAIN_NS, HubAddressNote
from unidle.engine.kube.manifest import CONTROLLER
from unidle.engine.node_commands import NodeCommand
from unidle.kube.objects import (
    ContainerState,
    ContainerStatus,
    Metadata,
    Pod,
    PodStatus,
    Terminated,
)
from unidle.kube.protocol import Create, Delete, KubeError, Patch, Write, WriteDone, WriteRefused

SETTINGS = HookSettings("unidle-system", "tools:1", "abc")
ORDER = NodeCommand("1-2-reboot", "n1", ("reboot", "now"), 60 * S)


class Site:
    """A clock, boots of nodes, and writes that are taken down."""

    def __init__(self) -> None:
        self.now, self.boots, self.writes = 5 * S, {"n1": "boot-1"}, list[Write]()

    def now_ns(self) -> int:
        return self.now

    def write(self, write: Write) -> None:
        self.writes.append(write)

    def jobs(self, settings: HookSettings | None = SETTINGS) -> HookJobs:
        site: Any = self
        return HookJobs(settings, site, site, site, lambda node: self.boots.get(node, ""))


def pod(
    code: int | None = None, text: str = "", *, phase: str = "Failed", reason: str = "", **more: Any
) -> Pod:
    labels = {HOOK: job_name("abc", ORDER.name), CONTROLLER: "abc"} | more
    ended = None if code is None else Terminated(exit_code=code, message=text)
    status = PodStatus(
        phase, reason, container_statuses=(ContainerStatus("hook", state=ContainerState(terminated=ended)),)
    )
    return Pod(Metadata(name="p", namespace="unidle-system", labels=labels), status=status)


def test_a_command_that_is_begun_twice_is_one_job_and_its_exit_code_the_result() -> None:
    site = Site()
    jobs = site.jobs()
    jobs.begin(ORDER)
    jobs.begin(ORDER)
    [create] = site.writes
    assert isinstance(create, Create)
    assert create.body == hook_job(SETTINGS, ORDER) == hook_job(SETTINGS, ORDER)
    jobs.written(WriteDone(create))
    jobs.see(pod(phase="Running"), gone=False)
    assert jobs.look(ORDER.name) is None
    jobs.see(pod(3, "the fan is broken\n"), gone=False)
    found = jobs.look(ORDER.name)
    assert found is not None
    assert (found.code, found.text, found.late) == (3, "the fan is broken", False)
    jobs.forget(ORDER.name)
    assert site.writes[-1] == Delete(create.kind, "unidle-system", job_name("abc", ORDER.name))


def test_pods_of_others_are_no_result() -> None:
    jobs = Site().jobs()
    jobs.begin(ORDER)
    jobs.see(pod(0, **{CONTROLLER: "another"}), gone=False)
    assert jobs.look(ORDER.name) is None


def test_a_command_that_is_killed_at_its_limit_is_late() -> None:
    jobs = Site().jobs()
    jobs.begin(ORDER)
    jobs.see(pod(137, reason="DeadlineExceeded"), gone=False)
    found = jobs.look(ORDER.name)
    assert found is not None
    assert found.late


def test_a_command_that_restarts_its_node_has_no_exit_code() -> None:
    site = Site()
    jobs = site.jobs()
    jobs.begin(ORDER)
    site.boots["n1"] = "boot-2"
    jobs.see(pod(255, "lost"), gone=False)
    found = jobs.look(ORDER.name)
    assert found is not None
    assert (found.code, found.restarted) == (None, True)


def test_without_a_namespace_or_a_right_the_reason_names_it() -> None:
    none = Site().jobs(None)
    none.begin(ORDER)
    found = none.look(ORDER.name)
    assert found is not None
    assert found.text == NO_HOOKS
    site = Site()
    jobs = site.jobs()
    jobs.begin(ORDER)
    error = KubeError("jobs.batch is forbidden", verb="create", status=403, reason="Forbidden")
    jobs.written(WriteRefused(site.writes[0], error))
    refused = jobs.look(ORDER.name)
    assert refused is not None
    assert 'grant the controller "create jobs.batch" in namespace unidle-system' in refused.text


def test_a_pod_that_never_comes_is_given_up_after_the_limit() -> None:
    site = Site()
    jobs = site.jobs()
    jobs.begin(ORDER)
    jobs.written(WriteDone(site.writes[0]))
    site.now += 71 * S
    found = jobs.look(ORDER.name)
    assert found is not None
    assert found.away
    assert "no pod of its Job was made" in found.text


def test_the_address_of_the_hub_is_written_again_and_a_refusal_is_said_once() -> None:
    site, said = Site(), list[str]()
    writer: Any = site
    note = HubAddressNote(writer, ("unidle-system", "unidle-hub"), ("fd00::1", 7464), "PEM", said.append)
    note.act(0)
    note.act(1)
    [write] = site.writes
    assert isinstance(write, Patch)
    assert write.body == {"data": {"address": "[fd00::1]:7464", "authority": "PEM"}}
    for _ in range(2):
        note.written(WriteRefused(write, KubeError("not found", verb="patch", status=404)), 0)
    assert len(said) == 1
    assert "ConfigMap unidle-system/unidle-hub" in said[0]
    note.act(31 * S)
    note.written(WriteDone(write), 31 * S)
    note.act(31 * S + AGAIN_NS - 1)
    assert len(site.writes) == 2
    note.act(31 * S + AGAIN_NS)
    assert len(site.writes) == 3
