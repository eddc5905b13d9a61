"""Commands on a cluster: the same output as on one machine, under the user's own name and rights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from e2e.commands import UNIDLE, unidle
from kube.in_cluster import Release, grant, user
from kube_cluster.user_space import pod_section
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]

STEPS = """
import os, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
for step in range(1, 100000):
    print("step", step, "loss 0.5", flush=True)
    time.sleep(0.1)
    if os.path.exists(os.environ["STOP"]):
        break
"""


def job_file(release: Release, name: str, ranks: int = 2, script: str = STEPS, **more: object) -> Path:
    stop = release.place / f"{name}.stop"
    job = {
        "name": name,
        "command": [sys.executable, "-c", script],
        "workdir": str(release.place),
        "ranks": ranks,
        "devices_per_rank": 0,
        "requests": {"cpus": 0.1},
        "rendezvous": "torchrun",
        "env": {"STOP": str(stop)},
        "grace_s": 1,
        "pod": pod_section(release.place),
        **more,
    }
    path = release.place / f"{name}.json"
    path.write_text(json.dumps(job))
    return path


def stop(release: Release, name: str) -> None:
    (release.place / f"{name}.stop").touch()


def test_a_job_is_submitted_followed_and_shown_as_on_one_machine(release: Release) -> None:
    alice = user(release, "alice", "unidle-user")
    submitted = release.json("submit", job_file(release, "shown"), kubeconfig=alice)
    job = submitted["job"]
    assert (submitted["state"], submitted["user"], submitted["submitted_by"]) == ("queued", "alice", "alice")
    release.becomes(job, "running")
    wait_until(lambda: "step 3" in release.run("logs", job, "--rank", "1", kubeconfig=alice), 120, "output")
    shown = release.json("show", job, kubeconfig=alice)
    assert shown["user"] == "alice"
    [explained] = [release.json("explain", job, kubeconfig=alice)]
    assert explained["job"] == job
    for words in (
        ("list",), ("queue",), ("guard", "nodes"), ("guard", "incidents"), ("ledger",), ("ledger", "--job", job),
        ("place", "--job", release.place / "shown.json"), ("fleet",),
    ):  # fmt: skip
        assert release.json(*words, kubeconfig=alice) is not None, words
    stop(release, "shown")
    release.becomes(job, "succeeded")
    report = release.place / "report.html"
    release.run("report", job, "-o", report, kubeconfig=alice)
    assert job in report.read_text()


def test_output_is_followed_to_the_end_of_the_job(release: Release) -> None:
    job = release.json("submit", job_file(release, "follow", ranks=1))["job"]
    release.becomes(job, "running")
    copy = release.place / "follow.out"
    with copy.open("wb") as out:
        words = ("logs", job, "-f", "--kubeconfig", release.cluster.folder / "kubeconfig")
        logs = subprocess.Popen(
            [*UNIDLE, *map(str, words)], stdout=out, stderr=subprocess.PIPE, env=release.env()
        )
    wait_until(lambda: "step 5 " in copy.read_text(), 120, "lines of the job")
    stop(release, "follow")
    _, errors = logs.communicate(timeout=120)
    assert logs.returncode == 0, errors
    lines = copy.read_text().splitlines()
    assert lines[:2] == ["rank 0 of 1", "step 1 loss 0.5"]
    assert release.state(job) == "succeeded"


def test_run_submits_and_prints_the_result(release: Release) -> None:
    path = job_file(release, "run", ranks=1)
    stop(release, "run")
    done = release.tried("run", path, "--progress", "off", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["exit_codes"], found["attempts"]) == ("succeeded", [0], 1)
    assert release.state(found["job"]) == "succeeded"


def test_a_command_runs_with_the_environment_of_a_rank(release: Release) -> None:
    job = release.json("submit", job_file(release, "exec"))["job"]
    release.becomes(job, "running")
    wait_until(
        lambda: release.tried("exec", job, "--rank", 1, "--", "true").returncode == 0, 120, "rank 1 runs"
    )
    out = release.run("exec", job, "--rank", 1, "--", "/bin/sh", "-c", "echo $RANK $UNIDLE_JOB; pwd")
    assert out.splitlines() == [f"1 {job}", str(release.place)]
    done = release.tried("exec", job, "--", "/bin/sh", "-c", "echo oops >&2; exit 7")
    assert (done.returncode, done.stderr.strip()) == (7, "oops"), done.stderr
    assert release.tried("exec", job, "--", "no-such-program").returncode == 127
    cancelled = release.json("cancel", job)
    assert cancelled["state"] == "cancelled"


def test_rights_are_those_of_kubernetes(release: Release) -> None:
    nobody = user(release, "nobody-yet")
    refused = release.tried("list", kubeconfig=nobody)
    assert refused.returncode == 4
    assert "user nobody-yet may not list jobs.unidle.dev in namespace unidle-test" in refused.stderr
    assert "unidle-user" in refused.stderr
    grant(release, "nobody-yet", "unidle-viewer")
    wait_until(lambda: release.tried("list", kubeconfig=nobody).returncode == 0, 60, "the right is seen")
    refused = release.tried("submit", job_file(release, "forbidden"), kubeconfig=nobody)
    assert refused.returncode == 4
    assert "may not create jobs.unidle.dev" in refused.stderr
    assert "forbidden" not in release.run("list", "--all")


def test_nobody_submits_under_another_name(release: Release) -> None:
    bob = user(release, "bob", "unidle-user")
    refused = release.tried("submit", job_file(release, "stolen"), "--user", "alice", kubeconfig=bob)
    assert refused.returncode == 2
    assert "bob" in refused.stderr
    job = release.json("submit", job_file(release, "own", user="root"), kubeconfig=bob)
    assert job["user"] == "bob"
    release.run("cancel", job["job"], kubeconfig=bob)


def test_a_ticket_is_no_good_with_another_secret_or_once_it_is_denied(release: Release) -> None:
    carol = user(release, "carol", "unidle-viewer")
    release.run("list", kubeconfig=carol)
    [kept] = [path for path in (release.place / "cache" / "unidle" / "tickets").iterdir()
              if "carol" in release.cluster.kubectl("get", "csr", json.loads(path.read_text())[0], "-o", "jsonpath={.spec.username}")]  # fmt: skip
    name, secret, until_s = json.loads(kept.read_text())
    kept.write_text(json.dumps([name, "0" * len(secret), until_s]))
    release.run("list", kubeconfig=carol)  # takes a new one
    assert json.loads(kept.read_text())[0] != name
    release.cluster.kubectl("certificate", "deny", json.loads(kept.read_text())[0])
    wait_until(
        lambda: (release.run("list", kubeconfig=carol), json.loads(kept.read_text()))[1][0] != name,
        60,
        "another",
    )


def test_a_store_and_a_cluster_exclude_each_other(release: Release) -> None:
    done = release.tried("list", "--store", "x.db")
    assert done.returncode == 2
    assert done.stderr == "unidle: --store, --kubeconfig: cannot be used together; leave one out\n"


def test_a_cluster_without_unidle_is_one_clear_error(release: Release, tmp_path: Path) -> None:
    env = release.env() | {"UNIDLE_KUBE_SERVICE": "default/none"}
    done = unidle("list", "--kubeconfig", str(release.cluster.folder / "kubeconfig"), env=env)
    assert done.returncode == 4
    assert "no endpoints available" in done.stderr
    assert "unidle kube install" in done.stderr
    assert len(done.stderr.splitlines()) == 1
