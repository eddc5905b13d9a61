"""The demo on Kubernetes, as `make demo-kube` runs it: it checks its own end, and nothing of its cluster is left."""

from __future__ import annotations

import subprocess
import sys

import pytest

import needs
from kube.cluster import ROOT

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]


def test_the_demo_survives_a_rank_and_a_node_and_leaves_nothing() -> None:
    pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo_kube.py"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "rank 1, in the pod on",
        "attempt 2 ended: node n3",
        "left of the cluster: no process",
    ):
        assert words in done.stderr, done.stderr
    assert (
        "rank 2 waits for its peers" in done.stdout or "Where the training thread's time goes" in done.stdout
    )
    picture = next(line for line in done.stderr.splitlines() if "the report as a browser shows it" in line)
    assert picture.endswith("report.png") or needs.chromium() is None
