"""A rank that the kernel kills as its container runs out of memory: named as such, also where only that process is killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from kube.cluster import Cluster
from kube.kube_site import KubeSite, site_in

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
NAMESPACE = "little-memory"
LIMIT_MIB = 160
FILLS = "kept = []\nwhile True:\n  kept.append(bytearray(b'x') * (8 << 20))"


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    limits = [{"type": "Container", "default": {"memory": f"{LIMIT_MIB}Mi"}}]
    meta = {"name": "memory", "namespace": NAMESPACE}
    told = {"apiVersion": "v1", "kind": "LimitRange", "metadata": meta, "spec": {"limits": limits}}
    with site_in(own_cluster, NAMESPACE, tmp_path_factory.mktemp("site"), [told]) as found:
        yield found


@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists(),
    reason="with control groups of version 2 the whole container is killed",
)
def test_a_rank_that_is_killed_for_lack_of_memory_is_named_so(site: KubeSite) -> None:
    job = site.submit("fills", [sys.executable, "-c", FILLS], 1, restart={"max": 0})
    found = site.ends(job)
    assert found.state == "failed"
    told = found.attempts[-1].ranks[0].info
    assert (told["oom"], told["oom_limit_bytes"], told["oom_limit_of"]) == (True, LIMIT_MIB << 20, "above"), (
        told
    )
    assert "memory" in site.explained(job), json.dumps(told)
