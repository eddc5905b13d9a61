"""The agents of a test cluster: the DaemonSet as it is in the repository, with the user space of this machine in its pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kube.cluster import IMAGE, ROOT
from kube.kube_site import KubeSite
from kube_cluster import user_space
from unidle.engine.kube.agent_manifest import AgentSettings, agent_objects
from waiting import wait_until


def kernel_log(site: KubeSite, node: str) -> Path:
    """The file that the agent of a node takes for its kernel log: this machine's own is of all nodes, and of other tests."""
    return site.place / f"kernel-{node}.log"


def deploy_agents(site: KubeSite, nodes: list[str], **settings: Any) -> None:
    """Apply the agents, and wait until the controller has heard those of all nodes."""
    reader = json.loads(Path(f"{site.store}.d/hub/reader").read_text())
    host, port = reader["addresses"][0]
    hub = {"address": f"{host}:{port}", "authority": reader["authority"]}
    for node in nodes:
        kernel_log(site, node).touch()
    command = (str(ROOT / ".venv" / "bin" / "python"), "-P", "-m", "unidle")
    for one in agent_objects(
        AgentSettings("default", image=IMAGE, command=command, pull="Never", **settings)
    ):
        if one["kind"] == "DaemonSet":
            _with_user_space(one["spec"]["template"]["spec"], site.place)
        if one["kind"] == "ConfigMap":
            one["data"] = hub
        apply(site, one)
    # not by the clocks, which a box measures, too
    wait_until(
        lambda: all(watches(site, node) for node in nodes), 120, f"agents to join; {agents_output(site)}"
    )


def watches(site: KubeSite, node: str) -> bool:
    """Whether the agent of a node has said what it watches."""
    return any(not one.why_not for one in site.view().watching.get(node, {}).values())


def _with_user_space(spec: dict[str, Any], place: Path) -> None:
    container = spec["containers"][0]
    container["args"] = [
        f"--kernel-log={place}/kernel-$(NODE_NAME).log" if arg.startswith("--kernel-log") else arg
        for arg in container["args"]
    ]
    container["env"].append({"name": "PYTHONDONTWRITEBYTECODE", "value": "1"})
    for number, path in enumerate([*user_space.paths(), str(place)]):
        name = f"machine-{number}"
        spec["volumes"].append({"name": name, "hostPath": {"path": path}})
        container["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})


def apply(site: KubeSite, told: dict[str, Any]) -> None:
    site.cluster.kubectl("apply", "-f", "-", told=told)


def agent_pods(site: KubeSite) -> dict[str, dict[str, Any]]:
    """By node."""
    found = site.cluster.get("pods", "-l", "app.kubernetes.io/name=unidle-agent")["items"]
    return {pod["spec"]["nodeName"]: pod for pod in found}


def agents_output(site: KubeSite) -> str:
    """For an error: what agents printed last."""
    done = site.cluster.tried("logs", "-l", "app.kubernetes.io/name=unidle-agent", "--tail=5")
    return done.stdout + done.stderr
