"""Gangs in real pods: started, restarted in place, disrupted, cut off, adopted, and ended without a trace.

All tests of this file use one cluster and one controller, in this order; only `make test-kube` runs them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from e2e.commands import unidle
from kube.cluster import IMAGE, Cluster, kube, pod
from kube.kube_site import DEADLINE_S, KubeSite
from kube_cluster.traces import traces
from kube_cluster.user_space import pod_section
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
NODES = ("n1", "n2", "n3")
WAITS = (
    'echo "rank $RANK of $WORLD_SIZE on $UNIDLE_NODE"; while [ ! -e "GO.$UNIDLE_JOB" ]; do sleep 0.1; done'
)

TRAIN = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while not os.path.exists("GO." + os.environ["UNIDLE_JOB"]) or step < 5:
    step += 1
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}/1000000 loss {loss.item():.4f}", flush=True)
    done = torch.tensor([float(os.path.exists("GO." + os.environ["UNIDLE_JOB"]) and step >= 5)])
    dist.all_reduce(done)
    if done.item():
        break
    time.sleep(0.1)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    folder = tmp_path_factory.mktemp("kube") / "cluster"
    started = kube("up", "--nodes", len(NODES), "--dir", folder)
    found = None
    try:
        assert started.returncode == 0, started.stderr
        found = KubeSite(Cluster(folder), tmp_path_factory.mktemp("site"))
        found.serve()
        yield found
    finally:
        if found is not None:
            found.close()
        ended = kube("down", "--dir", folder)
    assert ended.returncode == 0, ended.stderr
    assert traces(found.cluster.layout) == []


def go(site: KubeSite, job: str) -> None:
    (site.place / f"GO.{job}").touch()


def shell(site: KubeSite, name: str, ranks: int = 2, **more: object) -> str:
    return site.submit(name, ["/bin/bash", "-c", WAITS], ranks, **more)


def steps_of(site: KubeSite, job: str, number: int) -> None:
    def begun() -> bool:
        return (site.job(job).attempts[number - 1].last_step() or 0) > 2

    wait_until(begun, 240, f"steps of attempt {number}")


@pytest.fixture(scope="module")
def gang(site: KubeSite) -> Iterator[str]:
    """Four ranks that train over three nodes until they may end; others use so much that no two nodes hold them."""
    for node, room_milli in zip(NODES, (1100, 1100, 1600), strict=True):  # for one, one and two ranks
        cores = int(site.cluster.get("node", node)["status"]["allocatable"]["cpu"])
        resources = {"requests": {"cpu": f"{cores * 1000 - room_milli}m"}}
        busy = pod(f"busy-{node}", "pause", node=node, container={"resources": resources})
        site.cluster.kubectl("create", "-f", "-", told=busy)
    wait_until(lambda: set(site.view().taken) == set(NODES), 60, "what others use is known")
    (site.place / "train.py").write_text(TRAIN)
    yield site.submit("trains", [sys.executable, "train.py"], 4, cpus=0.7)
    for node in NODES:
        site.cluster.kubectl("delete", "pod", f"busy-{node}")


def test_a_gang_trains_over_three_nodes(site: KubeSite, gang: str) -> None:
    found = site.attempt_runs(gang)
    assert {place.node for place in found.attempts[0].places} == set(NODES)
    pods = site.pods(gang)
    assert set(pods) == set(NODES)
    assert {p["metadata"]["annotations"]["unidle.dev/attempt"] for p in pods.values()} == {"1"}
    steps_of(site, gang, 1)


def test_a_rank_that_is_killed_starts_again_in_its_pod(site: KubeSite, gang: str) -> None:
    before = site.pods(gang)
    [pid] = site.rank_pids(gang, 3)
    os.kill(pid, signal.SIGKILL)
    second = site.attempt_runs(gang, 2)
    assert second.attempts[1].places == second.attempts[0].places
    assert site.uids(gang) == {node: p["metadata"]["uid"] for node, p in before.items()}
    assert "killed by SIGKILL" in site.explained(gang)

    def annotated() -> bool:
        told = [p["metadata"]["annotations"] for p in site.pods(gang).values()]
        return {one["unidle.dev/attempt"] for one in told} == {"2"}

    wait_until(annotated, 60, "annotations of the second attempt")
    steps_of(site, gang, 2)
    name = next(iter(before.values()))["metadata"]["name"]
    assert "step 1/1000000" in site.cluster.kubectl("logs", name)
    shown = unidle("logs", gang, "--store", site.store)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert {line[:3] for line in shown.stdout.splitlines()} == {"[0]", "[1]", "[2]", "[3]"}


def test_a_gang_that_ends_leaves_no_pod(site: KubeSite, gang: str) -> None:
    go(site, gang)
    assert site.ends(gang).state == "succeeded", site.explained(gang)
    wait_until(lambda: not site.pods(gang), 120, "no pod of the job")
    check = unidle("ledger", "--check", "--store", site.store)
    assert check.returncode == 0, check.stdout


def test_a_pod_that_others_delete_is_no_failure_and_another_takes_its_place(site: KubeSite) -> None:
    job = shell(site, "deleted")
    site.attempt_runs(job)
    before = site.uids(job)
    node, uid = next(iter(before.items()))
    site.cluster.kubectl("delete", "pod", site.pods(job)[node]["metadata"]["name"], "--wait=false")
    site.attempt_runs(job, 2)
    assert uid not in site.uids(job).values()
    found = site.job(job)
    assert found.attempts[0].disrupted is not None
    assert found.attempts[0].disrupted.code == "pod_deleted"
    assert "by others" in site.explained(job)
    go(site, job)
    assert site.ends(job).state == "succeeded"
    wait_until(lambda: not site.pods(job), 120, "no pod of the job")


def test_an_eviction_is_no_failure(site: KubeSite) -> None:
    job = shell(site, "evicted", ranks=1)
    site.attempt_runs(job)
    [pod_] = site.pods(job).values()
    meta = pod_["metadata"]
    told = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
    site.cluster.kubectl("create", "--raw", path, "-f", "-", told=told)
    site.attempt_runs(job, 2)
    because = site.job(job).attempts[0].disrupted
    assert because is not None
    assert because.code in ("pod_evicted", "pod_deleted")
    site.cancel(job)


def test_a_controller_that_is_killed_is_followed_by_one_that_adopts_the_pods(site: KubeSite) -> None:
    job = shell(site, "adopted", ranks=3)
    site.attempt_runs(job)
    before, pids = site.uids(job), [site.rank_pids(job, rank) for rank in range(3)]
    site.kill_controller()
    site.serve()
    go(site, job)
    found = site.ends(job)
    assert found.state == "succeeded"
    assert len(found.attempts) == 1
    assert all(pids)
    assert before
    wait_until(lambda: not site.pods(job), 120, "no pod of the job")


def test_a_pod_that_ended_while_no_controller_was_there_is_in_the_log_before_it_goes(site: KubeSite) -> None:
    job = shell(site, "ended-alone", ranks=1)
    site.attempt_runs(job)
    [before] = site.pods(job).values()
    site.kill_controller()
    site.cluster.kubectl("delete", "pod", before["metadata"]["name"], "--wait=false")
    wait_until(
        lambda: "terminated" in next(iter(site.pods(job).values()))["status"]["containerStatuses"][0]["state"],
        60, "the container's end",
    )  # fmt: skip
    site.serve()
    site.attempt_runs(job, 2)
    assert site.job(job).attempts[0].disrupted is not None
    site.cancel(job)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"image": "unidle.dev/there-is-none:1", "image_pull_policy": "Never"}, "ErrImageNeverPull"),
        (
            {"image": IMAGE, "image_pull_policy": "Never", "run_as_user": 1000},
            "No such file or directory: 'true'",
        ),
        ({}, "names no image"),
        ({**pod_section(), "service_account": "nobody-made-it"}, "serviceaccount"),
    ],
    ids=["no image", "no program", "names none", "refused"],
)
def test_a_pod_that_cannot_start_is_named_with_its_cause(
    site: KubeSite, section: dict[str, object], words: str, request: pytest.FixtureRequest
) -> None:
    name = f"cannot-{request.node.callspec.id.replace(' ', '-')}"
    job = site.submit(name, ["true"], 1, restart={"max": 0}, pod=section, workdir="/")
    assert site.ends(job).state == "failed"
    assert words in site.explained(job)
    wait_until(lambda: not site.pods(job), 120, "no pod of the job")


def test_an_image_with_nothing_but_a_static_program_runs_and_restarts(site: KubeSite) -> None:
    """It has no Python, no shell and no library of C."""
    section = {"image": IMAGE, "image_pull_policy": "Never", "run_as_user": 1000}
    command = ["/kube-tool", "serve", "127.0.0.1:8123", "hello"]
    job = site.submit("bare", command, 1, pod=section, workdir="/")
    site.attempt_runs(job)
    before = site.uids(job)
    os.kill(max(site.rank_pids(job, 0)), signal.SIGKILL)
    site.attempt_runs(job, 2)
    assert site.uids(job) == before
    site.cancel(job)
    job = site.submit("bare-ends", ["/kube-tool", "print", "hello"], 2, pod=section, workdir="/")
    assert site.ends(job).state == "succeeded", site.explained(job)
    wait_until(lambda: not site.pods(job), 120, "no pod of the job")


def test_a_node_that_is_cut_off_is_fenced_by_the_lease_and_the_gang_goes_elsewhere(site: KubeSite) -> None:
    job = shell(site, "cut", ranks=1)
    first = site.attempt_runs(job)
    node = first.attempts[0].places[0].node
    pids = site.rank_pids(job, 0)
    assert pids
    port = site.cluster.layout.port(NODES.index(node) + 1)
    subprocess.run(["ip", "link", "set", port, "down"], check=True)
    try:
        second = site.attempt_runs(job, 2, timeout_s=10 * DEADLINE_S)
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert second.attempts[1].places[0].node != node
        text = site.explained(job)
        assert f"node {node} has been silent for" in text
    finally:
        subprocess.run(["ip", "link", "set", port, "up"], check=True)
    go(site, job)
    assert site.ends(job).state == "succeeded"
    wait_until(lambda: not site.pods(job), 240, "no pod of the job, also on the node that was away")
    wait_until(lambda: site.cluster.status()["nodes"][node], 120, "the node is Ready")


def test_no_object_and_no_rank_is_left(site: KubeSite) -> None:
    wait_until(lambda: not site.cluster.get("pods", "-A", "-l", "unidle.dev/job")["items"], 60, "no pod")
    assert unidle("ledger", "--check", "--store", site.store).returncode == 0
