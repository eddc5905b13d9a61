"""Output of ranks outlives their pods, however these end, and the controller."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from e2e.commands import UNIDLE, unidle
from kube.cluster import ROOT, Cluster
from kube.in_cluster import Release
from kube.kube_site import KubeSite
from kube.test_kube_commands import job_file, stop
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
PRINTS = """
echo "first of $RANK in attempt $UNIDLE_ATTEMPT"
[ -e "GO.$UNIDLE_JOB" ] || while [ ! -e "GO.$UNIDLE_JOB" ]; do sleep 0.1; done
seq 1 200000 | sed "s/^/number /"
echo "last of $RANK"
"""


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    own_cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy" / "kubernetes" / "crds.yaml"))
    own_cluster.kubectl(
        "wait", "crd/fleetpolicies.unidle.dev", "--for=condition=Established", "--timeout=60s"
    )
    found = KubeSite(own_cluster, tmp_path_factory.mktemp("logs"))
    try:
        found.serve()
        yield found
    finally:
        found.close()


def logs(site: KubeSite, job: str, *words: object) -> tuple[list[str], str]:
    """Lines of standard output, and standard error."""
    done = unidle("logs", job, "--store", site.store, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def check_order(place: dict[str, int], lines: list[str]) -> None:
    """Each line is whole, and once."""
    numbers = [place[line] for line in lines]
    assert numbers == sorted(set(numbers))


def without_pods(site: KubeSite, job: str) -> None:
    wait_until(lambda: not site.pods(job), 120, f"no pod of {job}")


def test_the_newest_output_is_there_after_pods_and_controller_have_gone(site: KubeSite) -> None:
    job = site.submit("prints", ["/bin/bash", "-c", PRINTS], 2)
    site.attempt_runs(job)
    whole = site.place / "follow.out"
    with whole.open("wb") as out:
        words = [*UNIDLE, "logs", job, "-f", "--rank", "1", "--store", str(site.store)]
        follows = subprocess.Popen(words, stdout=out)
    (site.place / f"GO.{job}").touch()
    assert site.ends(job).state == "succeeded", site.explained(job)
    assert follows.wait(120) == 0
    followed = whole.read_text().splitlines()
    every = ["first of 1 in attempt 1", *(f"number {n}" for n in range(1, 200_001)), "last of 1"]
    place = {line: number for number, line in enumerate(every)}
    assert (followed[0], followed[-1]) == (every[0], every[-1])
    check_order(place, followed)
    without_pods(site, job)
    shown, said = logs(site, job, "--rank", 1)
    check_order(place, shown)
    assert shown[-1] == "last of 1"
    assert len(shown) > 20_000
    dropped = re.findall(r"rank 1: ([\d,]+) lines dropped", said)
    assert sum(int(one.replace(",", "")) for one in dropped) == 200_002 - len(shown)
    assert logs(site, job, "--rank", 0, "--tail", 1)[0] == ["last of 0"]
    site.kill_controller()
    try:
        assert logs(site, job, "--rank", 1)[0] == shown
    finally:
        site.serve()
    assert logs(site, job, "--rank", 1)[0] == shown


def test_what_a_pod_printed_before_it_was_deleted_at_once_is_there(site: KubeSite) -> None:
    job = site.submit("deleted", ["/bin/bash", "-c", PRINTS], 1)
    site.attempt_runs(job)
    line = ["first of 0 in attempt 1"]
    wait_until(lambda: list(Path(f"{site.store}.d/runs/{job}").rglob("log")), 60, "its output is kept")
    [pod] = site.pods(job).values()
    site.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    site.attempt_runs(job, 2)
    assert logs(site, job, "--attempt", 1, "--rank", 0)[0] == line
    site.cancel(job)
    assert logs(site, job, "--attempt", 1, "--rank", 0)[0] == line
    assert logs(site, job)[0] == ["first of 0 in attempt 2"]


def test_retention_of_a_policy_removes_what_was_kept(site: KubeSite) -> None:
    job = site.submit("removed", ["/bin/bash", "-c", "echo printed"], 1)
    assert site.ends(job).state == "succeeded", site.explained(job)
    kept = Path(f"{site.store}.d/runs/{job}")
    wait_until(kept.exists, 60, "its output is kept")
    meta = {"apiVersion": "unidle.dev/v1alpha1", "kind": "FleetPolicy", "metadata": {"name": "retention"}}
    site.cluster.kubectl("apply", "-f", "-", told={**meta, "spec": {"retention": {"age": "1s"}}})
    try:
        wait_until(lambda: not kept.exists(), 120, f"its output is removed; {site.errors()}")
    finally:
        site.cluster.kubectl("delete", "fleetpolicies.unidle.dev", "retention")


def test_logs_of_an_ended_job_are_those_of_a_command_on_the_cluster(release: Release) -> None:
    job = release.json("submit", job_file(release, "ended-logs"))["job"]
    release.becomes(job, "running")
    stop(release, "ended-logs")
    release.becomes(job, "succeeded")
    label = ("pods", "-n", release.namespace, "-l", f"unidle.dev/job={job}")
    wait_until(lambda: not release.cluster.get(*label)["items"], 120, "no pod of the job")
    shown = release.run("logs", job, "--rank", "1").splitlines()
    assert shown[:2] == ["rank 1 of 2", "step 1 loss 0.5"]
    report = release.place / "ended.html"
    release.run("report", job, "-o", report)
