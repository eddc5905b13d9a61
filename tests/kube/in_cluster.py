"""A controller in a pod of a real cluster, installed by the chart, and commands that reach it as a user's do."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.commands import unidle
from kube.cluster import ROOT, Cluster
from kube_cluster import assets
from kube_cluster.user_space import values
from waiting import wait_until

CHART = ROOT / "deploy" / "kubernetes" / "chart"


def helm(cluster: Cluster, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    place = cluster.folder / "logs" / "helm"
    env = {"HOME": str(place), "PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.folder / "kubeconfig")}
    done = subprocess.run([assets.helm(), *words], capture_output=True, text=True, env=env, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


class Release:
    """One release of the chart. ``place``: the directory of its store, and of files for it."""

    def __init__(self, cluster: Cluster, namespace: str, place: Path, name: str = "unidle") -> None:
        self.cluster, self.namespace, self.place, self.name = cluster, namespace, place, name
        self.store = place / "store.db"
        log = cluster.layout.audit
        self.audit_from = log.stat().st_size if log.exists() else 0
        """Where requests of this release begin in the audit log: a cluster may have had another one of the same name."""

    def install(self, verb: str = "install", **more: Any) -> None:
        path = self.place / "values.yaml"
        path.write_text(yaml.safe_dump(values(self.place, **more)))
        helm(self.cluster, verb, self.name, str(CHART), "-n", self.namespace, "-f", str(path))

    def ready(self) -> None:
        self.cluster.kubectl(
            "rollout", "status", "-n", self.namespace, f"deployment/{self.name}-controller", "--timeout=240s"
        )

    def log(self) -> str:
        return self.cluster.tried(
            "logs", "-n", self.namespace, f"deployment/{self.name}-controller", "--tail=60"
        ).stdout

    def env(self, **more: str) -> dict[str, str]:
        """For commands: the Service, and no cache of the user's."""
        home = {
            "HOME": str(self.place),
            "XDG_CACHE_HOME": str(self.place / "cache"),
            "XDG_DATA_HOME": str(self.place / "data"),
        }
        service = {"UNIDLE_KUBE_SERVICE": f"{self.namespace}/{self.name}"}
        kept = {
            name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "UNIDLE_STORE")
        }
        return {**kept, **home, **service, **more}

    def tried(self, *words: object, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command on the cluster, as whom the kubeconfig names."""
        config = kubeconfig or self.cluster.folder / "kubeconfig"
        at = [str(word) for word in words]
        cut = at.index("--") if "--" in at else len(at)
        return unidle(*at[:cut], "--kubeconfig", str(config), *at[cut:], env=self.env())

    def run(self, *words: object, kubeconfig: Path | None = None) -> str:
        done = self.tried(*words, kubeconfig=kubeconfig)
        assert done.returncode == 0, (words, done.stderr, self.log())
        return done.stdout

    def json(self, *words: object, kubeconfig: Path | None = None) -> Any:
        return json.loads(self.run(*words, "--json", kubeconfig=kubeconfig))

    def state(self, job: str) -> str:
        found: list[Mapping[str, Any]] = self.json("list", "--all")
        return next((str(one["state"]) for one in found if one["job"] == job), "")

    def becomes(self, job: str, *states: str, timeout_s: float = 180) -> str:
        return str(
            wait_until(
                lambda: (found := self.state(job)) in states and found, timeout_s, f"{job} is {states}"
            )
        )


def user(release: Release, name: str, *roles: str) -> Path:
    """The kubeconfig of a user who has these cluster roles in the namespace of the release: the administrator acts for them."""
    config = json.loads((release.cluster.folder / "kubeconfig").read_text())
    config["users"][0]["user"] |= {"as": name, "as-groups": ["system:authenticated"]}
    path = release.place / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    for role in roles:
        grant(release, name, role)
    return path


def grant(release: Release, name: str, role: str) -> None:
    words = (
        "create",
        "rolebinding",
        f"{name}-{role}",
        "-n",
        release.namespace,
        f"--clusterrole={role}",
        f"--user={name}",
    )
    release.cluster.kubectl(*words)


@contextmanager
def released(cluster: Cluster, namespace: str, place: Path, **more: Any) -> Iterator[Release]:
    """A release that is ready, until it is uninstalled."""
    release = Release(cluster, namespace, place)
    release.install(**more)
    try:
        release.ready()
        yield release
    finally:
        helm(cluster, "uninstall", "unidle", "-n", namespace, "--wait", check=False)
