"""The demo on Kubernetes, as `make demo-kube` runs it: it checks its own end, and nothing of its cluster is left."""

from __future__ import annotations

import subprocess
import sys

import pytest

import needs
from kube.cluster import ROOT

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
LIMIT_S = 1500


@pytest.mark.timeout(LIMIT_S + 120)
def test_the_demo_survives_a_rank_and_a_node_and_leaves_nothing() -> None:
    pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")
    with subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "demo_kube.py"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
    ) as demo:  # fmt: skip
        try:
            shown, _ = demo.communicate(timeout=LIMIT_S)
        finally:
            demo.terminate()  # it takes its cluster down
    assert demo.returncode == 0, shown
    for words in (
        "rank 1, in the pod on",
        "node n3 has been silent",
        "Where the training thread's time goes",  # of rank 2, by the profile
        "no gap, no overlap",
        "left of the cluster: no process",
    ):
        assert words in shown, shown
    assert "report.png" in shown or needs.chromium() is None
