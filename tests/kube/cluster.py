"""What tests of a cluster ask it, and what this machine shows of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from kube_cluster import assets, state  # noqa: E402
from kube_cluster.layout import IMAGE, Layout  # noqa: E402
from waiting import wait_until  # noqa: E402

KUBE = ROOT / "scripts" / "kube"


def kube(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    """``scripts/kube`` to its end. What it starts in a cluster that stays is not of this run of tests."""
    stays = "UNIDLE_KUBE_DIR" in os.environ
    kept = {k: v for k, v in os.environ.items() if not (stays and k.startswith("UNIDLE_TEST_"))}
    return subprocess.run(
        [KUBE, *map(str, words)],
        capture_output=True,
        text=True,
        env={**kept, **env},
        stdin=subprocess.DEVNULL,
    )


class Cluster:
    """A cluster that runs. ``folder``: what was given as --dir."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layout = Layout(folder.resolve())
        found = assets.complete()
        assert found is not None
        self._kubectl = [found.program("kubectl"), f"--kubeconfig={folder / 'kubeconfig'}"]

    @property
    def host(self) -> str:
        """The address of this machine in the cluster's network."""
        return state.running(self.layout).layout.host

    def kubectl(self, *words: str, told: object = None) -> str:
        """What kubectl prints; the test fails where it fails. ``told``: an object for ``-f -``."""
        done = self.tried(*words, told=told)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tried(self, *words: str, told: object = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._kubectl, *words],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            env={
                "HOME": str(self.folder / "logs")
            },  # kubectl keeps a cache there, which goes with the cluster
        )

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def make_namespace(self, name: str, **labels: str) -> None:
        """Return once pods can be made in it: it has a service account. Labels: ``pod-security.kubernetes.io/enforce=...`` and others."""
        meta = {"name": name, "labels": labels}
        self.kubectl("create", "-f", "-", told={"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        account = ("get", "serviceaccount", "default", "-n", name)
        wait_until(lambda: self.tried(*account).returncode == 0, 60, "the service account")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(kube("status", "--dir", self.folder, "--json").stdout)
        return found

    def phase(self, pod: str) -> str:
        return str(self.get("pod", pod)["status"].get("phase"))


def pod(name: str, *args: str, node: str = "", **spec: object) -> dict[str, Any]:
    """A pod of the cluster's image that runs ``kube-tool ARGS``; on ``node``, or where the scheduler puts it."""
    container = {"name": "main", "image": IMAGE, "args": list(args), "imagePullPolicy": "Never"}
    container.update(spec.pop("container", {}))  # type: ignore[call-overload]
    chosen = {"nodeName": node} if node else {}
    whole = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        **chosen,
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


def routes(layout: Layout) -> list[str]:
    """Routes of this machine that are of a cluster. Others come and go with what else runs here."""
    found = _printed("ip", "route", "show", "table", "all").splitlines()
    return sorted(line for line in found if layout.id in line)


def _printed(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
