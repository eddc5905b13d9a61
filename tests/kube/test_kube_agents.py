"""Agents in pods of a DaemonSet: what nodes are checked for, and what is seen of ranks in pods, on real nodes.

All tests of this file use one controller, in this order; only `make test-kube` runs them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from e2e.commands import ask, unidle
from kube.cluster import IMAGE, ROOT, Cluster
from kube.kube_agents import agent_pods, agents_output, apply, deploy_agents, kernel_log
from kube.kube_site import KubeSite
from kube.test_kube_jobs import WAITS, go
from kube_cluster.user_space import pod_section
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
NODES = ["n1", "n2"]
ALLREDUCE = Path(__file__).parents[1] / "e2e" / "allreduce.py"
WORKS = "def train_it():\n  while True: sum(range(1000))\ntrain_it()"


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    found = KubeSite(own_cluster, tmp_path_factory.mktemp("site"))
    try:
        found.serve("--cpu-devices", 2)
        yield found
    finally:
        found.close()
        own_cluster.tried("delete", "daemonset,configmap,serviceaccount", "unidle-agent", "unidle-hub")


def shell(site: KubeSite, name: str, ranks: int = 2) -> str:
    return site.submit(name, ["/bin/bash", "-c", WAITS], ranks)


def ends_well(site: KubeSite, job: str) -> None:
    assert site.ends(job).state == "succeeded", site.explained(job)
    wait_until(lambda: not site.pods(job), 120, "no pod of the job")


def watched(site: KubeSite, node: str) -> set[str]:
    """What an agent says that it watches; it joins before it says so."""
    return set(site.view().watching.get(node, ()))


def test_without_agents_a_job_runs_and_what_is_not_watched_is_said(site: KubeSite) -> None:
    job = shell(site, "alone")
    site.attempt_runs(job)
    assert "no agent runs on n" in site.explained(job)
    done = unidle("profile", job, "--seconds", "1", "--store", site.store)
    assert done.returncode != 0
    assert "not connected" in done.stderr, done.stderr
    go(site, job)
    ends_well(site, job)


def test_with_agents_nodes_are_checked_and_watched(site: KubeSite) -> None:
    deploy_agents(site, NODES)
    job = shell(site, "checked")
    checks = wait_until(lambda: site.view().care.checks, 120, "a check before the gang starts")
    assert checks.keys() <= set(NODES)  # what it finds is of this machine, which others use
    wait_until(
        lambda: (known := site.view().jobs.get(job)) and known.attempts and known.attempts[-1].all_spawned,
        120,
    )
    assert "no agent runs" not in site.explained(job)
    wait_until(
        lambda: all(watched(site, node) >= {"kernel log", "machine"} for node in NODES),
        60,
        "both agents to watch",
    )
    go(site, job)
    ends_well(site, job)


def test_an_agent_has_no_rights_at_the_api_server(site: KubeSite) -> None:
    account = "system:serviceaccount:default:unidle-agent"
    done = site.cluster.tried("auth", "can-i", "list", "pods", f"--as={account}", "-A")
    assert done.stdout.strip() == "no"
    [volumes] = {json.dumps(pod["spec"]["volumes"]) for pod in agent_pods(site).values()} - {""}
    assert "kube-api-access" not in volumes


def stranger(site: KubeSite) -> dict[str, object]:
    """A pod with an agent and the service account of everyone."""
    reader = json.loads(Path(f"{site.store}.d/hub/reader").read_text())
    host, port = reader["addresses"][0]
    authority = site.place / "authority.pem"
    authority.write_text(reader["authority"])
    section = pod_section(site.place)
    container = {
        "name": "agent",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [
            *(
                str(ROOT / ".venv/bin/python"),
                "-P",
                "-m",
                "unidle",
                "agent",
                f"--join={host}:{port}",
                "--node=n1",
            ),
            *(
                "--token-file=/token/token",
                f"--authority={authority}",
                "--pods=/var/lib",
                "--state=/tmp/agent",
            ),
        ],
        "volumeMounts": [
            *({"name": f"v{i}", "mountPath": v["mount"]} for i, v in enumerate(section["volumes"])),
            {"name": "token", "mountPath": "/token"},
        ],
    }
    return with_token(container, section["volumes"])


def with_token(container: dict[str, object], mounts: list[dict[str, str]]) -> dict[str, object]:
    """The pod of a container, with a token for the hub."""
    token = {"serviceAccountToken": {"audience": "unidle-hub", "path": "token"}}
    volumes = [{"name": f"v{i}", "hostPath": {"path": v["host_path"]}} for i, v in enumerate(mounts)]
    return {
        "nodeName": "n1",
        "containers": [container],
        "volumes": [*volumes, {"name": "token", "projected": {"sources": [token]}}],
        "terminationGracePeriodSeconds": 1,
    }


def test_a_pod_of_another_account_is_not_taken_for_an_agent(site: KubeSite) -> None:
    apply(site, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": stranger(site)})

    def refused() -> bool:
        done = site.cluster.tried("logs", "stranger")
        return (
            "service account default/default, and agents have default/unidle-agent"
            in done.stdout + done.stderr
        )

    try:
        wait_until(refused, 120, "the hub refuses it")
    finally:
        site.cluster.kubectl("delete", "pod", "stranger")


def test_a_fault_in_the_kernel_log_of_a_node_is_found(site: KubeSite) -> None:
    with kernel_log(site, "n2").open("a") as log:
        log.write(f"[{time.monotonic():.6f}] EXT4-fs error (device nvme9n9): ext4_find_entry:1455: inode #2: comm x: reading directory lblock 0\n")  # fmt: skip

    def found() -> list[tuple[str, str]]:
        return [(one["kind"], one["node"]) for one in ask("guard", "incidents", "--store", site.store)]

    wait_until(lambda: ("storage", "n2") in found(), 60, f"a finding of node n2; {agents_output(site)}")


def test_a_rank_that_hangs_in_a_pod_is_named_with_its_stack(site: KubeSite) -> None:
    text = f"echo rank $RANK begins; exec {sys.executable} {ALLREDUCE} 150 0.02"
    job = site.submit(
        "hangs", ["/bin/bash", "-c", text], 2, restart={"max": 2, "backoff_s": 0},
        progress={"pattern": "at step ([0-9]+)"},
    )  # fmt: skip
    site.attempt_runs(job)
    wait_until(lambda: (site.job(job).attempts[0].last_step() or 0) > 3, 120, "steps")
    pid = max(site.rank_pids(job, 1))
    os.kill(pid, signal.SIGSTOP)
    found = site.ends(job)
    assert (found.state, len(found.attempts)) == ("succeeded", 2), site.explained(job)
    incidents = [one for one in ask("guard", "incidents", "--store", site.store) if one["job"] == job]
    assert [(one["kind"], one["rank"]) for one in incidents] == [("hang", 1)]
    story = ask("explain", job, "--store", site.store)
    assert story["odd_ranks"] == [1]
    assert "allreduce.py" in story["stacks"][0]["at"], story["stacks"]


def test_ranks_in_pods_are_profiled_also_after_their_agents_were_killed(site: KubeSite) -> None:
    job = site.submit("works", [sys.executable, "-c", WORKS], 2, cpus=0.1)
    site.attempt_runs(job)
    before = {
        node: pod["status"]["containerStatuses"][0]["containerID"] for node, pod in agent_pods(site).items()
    }
    for pid in agent_pids(site):
        os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        pods = agent_pods(site)
        now = {node: pod["status"]["containerStatuses"][0] for node, pod in pods.items()}
        return all(one["ready"] and one["containerID"] != before[node] for node, one in now.items())

    wait_until(again, 120, "agents to be started again")
    page = site.place / "p.json"

    def profiled() -> bool:
        page.unlink(missing_ok=True)
        done = unidle("profile", job, "--seconds", "1", "--out", page, "--store", site.store)
        return done.returncode == 0

    wait_until(profiled, 120, "a profile")
    told = json.loads(page.read_text())
    assert sorted(row["rank"] for row in told["ranks"]) == [0, 1]
    assert any("train_it" in str(name) for row in told["frames"] for name in row)
    site.cancel(job)


def agent_pids(site: KubeSite) -> list[int]:
    """On this machine, of the agents of this cluster."""
    uids = [pod["metadata"]["uid"] for pod in agent_pods(site).values()]
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            groups = (entry / "cgroup").read_text() if b"unidle\0agent" in words else ""
        except OSError:
            continue
        if any(uid in groups for uid in uids):
            found.append(int(entry.name))
    return found


def test_the_ledger_of_all_this_adds_up(site: KubeSite) -> None:
    assert unidle("ledger", "--check", "--store", site.store).returncode == 0
