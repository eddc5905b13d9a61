"""Commands of the site on nodes of a cluster: Jobs with a result, a limit and a name of their own, which are removed.

All tests of this file use one controller after the other, in this order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import unidle
from kube.cluster import IMAGE, Cluster
from kube.kube_site import KubeSite
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
NODE = "n2"
LOADER = Path("/lib64/ld-linux-x86-64.so.2").resolve()
CHROOT = (
    *(f"/host{LOADER}", "--library-path", f"/host{LOADER.parent}"),
    *("/host/usr/sbin/chroot", "/host", "/bin/sh", "-c"),
)
"""The image of tests has no program for this: those of the node are used."""


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    found = KubeSite(own_cluster, tmp_path_factory.mktemp("site"))
    try:
        yield found
    finally:
        found.close()


def proved_by(site: KubeSite, script: str, *more: object, timeout: str = "60s") -> None:
    """Start a controller whose nodes return to service by a script."""
    if site.up is not None:
        site.kill_controller()
    fleet = site.place / "fleet.json"
    prove = {"command": [*CHROOT, script], "timeout": timeout}
    fleet.write_text(json.dumps({"guard": {"prove": prove}}))
    site.serve("--cpu-devices", 2, "--fleet", fleet, *more)


def hooks(site: KubeSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.cluster.get("jobs.batch", "-l", "unidle.dev/hook")["items"]
    return found


def drain_and_return(site: KubeSite) -> None:
    unidle("guard", "drain", NODE, "--store", site.store)  # refused for a node that is out already
    done = unidle("guard", "return", NODE, "--store", site.store)
    assert done.returncode == 0, done.stderr


def story(site: KubeSite) -> str:
    done = unidle("guard", "nodes", "--store", site.store, "--json")
    return done.stdout + site.errors()


def shows(site: KubeSite, words: str, timeout_s: float = 120) -> None:
    try:
        wait_until(lambda: words in story(site), timeout_s, words)
    except AssertionError:
        pytest.fail(f"{words!r} is not in {story(site)}")


def test_without_a_namespace_for_them_the_error_names_the_option(site: KubeSite) -> None:
    proved_by(site, "true")
    drain_and_return(site)
    shows(site, "--hook-namespace", 60)
    assert hooks(site) == []


def test_a_command_runs_once_on_its_node_and_its_job_is_removed(site: KubeSite) -> None:
    out: Path = site.place / "out"
    script = f"echo ran >> {out}; while [ ! -e {site.place}/go ]; do sleep 0.1; done"
    proved_by(site, script, "--hook-namespace", "default", "--hook-image", IMAGE)
    drain_and_return(site)
    wait_until(out.exists, 120, f"the command to run; {story(site)}")
    [job] = hooks(site)
    assert job["spec"]["template"]["spec"]["nodeName"] == NODE
    site.kill_controller()
    site.serve("--cpu-devices", 2, "--fleet", site.place / "fleet.json", "--hook-namespace", "default", "--hook-image", IMAGE)  # fmt: skip
    (site.place / "go").touch()
    shows(site, "fit by the standard check")
    wait_until(lambda: hooks(site) == [], 60, "the Job to be removed")
    assert out.read_text() == "ran\n"


def test_a_command_that_fails_or_does_not_end_keeps_the_node_out(site: KubeSite) -> None:
    options = ("--hook-namespace", "default", "--hook-image", IMAGE)
    proved_by(site, "echo the fan is broken; exit 1", *options)
    drain_and_return(site)
    shows(site, "the fan is broken")
    proved_by(site, "sleep 600", *options, timeout="3s")
    drain_and_return(site)
    shows(site, "did not end in time")
    wait_until(lambda: hooks(site) == [], 60, "no Job is left")


def test_a_namespace_that_refuses_the_pod_is_in_the_story(site: KubeSite) -> None:
    name, level = "no-hooks", "pod-security.kubernetes.io/enforce=baseline"
    site.cluster.kubectl("create", "namespace", name)
    site.cluster.kubectl("label", "namespace", name, level)
    try:
        proved_by(site, "true", "--hook-namespace", name, "--hook-image", IMAGE, timeout="3s")
        drain_and_return(site)
        shows(site, "no pod of its Job was made")
    finally:
        site.cluster.kubectl("delete", "namespace", name, "--wait=false")
