"""The demo on Kubernetes: examples/gpt on a cluster of three real nodes on this machine, where a rank is killed, and then a node.

    make kube-assets
    make demo-kube

As root. Each node is a kubelet and a containerd in namespaces of its own; pods have the user space of this machine. unidle is
installed by its chart. Two jobs of low priority have a device on n2 and one on n3, so that the 4 ranks are on all three nodes.
Node n3 is lost permanently: there is room again as one of these jobs makes way. Nothing is left of the cluster in the end; a
directory below .cache/demo has the log, the report and the profile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from demo import ROOT, FollowedDemo, place_with_gpt, tell
from kube_cluster import assets, machine
from kube_cluster.layout import Layout
from kube_cluster.traces import traces
from kube_cluster.user_space import agents, pod_section, values
from unidle.engine.local.ranks import process_tree
from unidle.errors import UnidleError
from unidle.view.state import View

NODES = 3
CONTROLLER, LOST = "n1", "n3"
CPU_DEVICES = 2
"""Of each node. The two small jobs leave 2, 1 and 1 of them for the gang."""
STEPS, KILLED_AT, LOST_AT = 200, 25, 50
"""Checkpoints are at multiples of 20: the last attempt has 160 steps, so that there is time to profile it."""
DEADLINE_S = 10
LIMIT_S = 600.0
"""For all waits together; two idle cores need about two minutes for the whole demo."""


class KubeDemo(FollowedDemo):
    """The cluster of the demo, and what the log of its controller shows."""

    def __init__(self, place: Path) -> None:
        # the volume of the store is a directory of this machine
        super().__init__(place, place / "store" / "store.db", LIMIT_S)
        self.cluster = place / "cluster"
        self._kubeconfig = str(self.cluster / "kubeconfig")

    def kube(self, *words: str) -> None:
        """``scripts/kube``, which prints what it does."""
        run([str(ROOT / "scripts" / "kube"), *words, "--dir", str(self.cluster)], stdout=subprocess.DEVNULL)

    def kubectl(self, *words: str) -> None:
        run([assets.needed().program("kubectl"), *words], env=self.environment())

    def unidle(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command of a user, who has nothing but the kubeconfig."""
        at = [sys.executable, "-m", "unidle", *words, "--kubeconfig", self._kubeconfig]
        return run(at, env=self.environment(), **more)

    def environment(self) -> dict[str, str]:
        """With helm on PATH, and caches that end with the demo's directory."""
        home = self.place / "home"
        path = f"{Path(assets.helm()).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("UNIDLE_", "XDG_"))}
        return {**kept, "HOME": str(home), "KUBECONFIG": self._kubeconfig, "PATH": path}


def main() -> None:
    argparse.ArgumentParser(prog="scripts/demo_kube.py", description=__doc__).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        machine.check()
        assets.needed()
        assets.helm()
    except UnidleError as error:
        sys.exit(f"demo: {error}")
    place = place_with_gpt("kube-")
    demo = KubeDemo(place)
    with ExitStack() as stack:
        stack.callback(demo.kube, "down")
        started(demo)
        code = played(demo)
        tell("everything is taken down")
        demo.unidle("kube", "uninstall")
    left = traces(Layout(demo.cluster.resolve()))
    shutil.rmtree(place / "home", ignore_errors=True)
    tell(f"left of the cluster: {', '.join(left) or 'no process, mount, interface, control group or file'}")
    demo.tell_end()
    sys.exit(code or bool(left))


def started(demo: KubeDemo) -> None:
    """The cluster, and unidle on it."""
    tell(f"a cluster of {NODES} nodes on this machine")
    demo.kube("up", "--nodes", str(NODES))
    tell("unidle is installed by its chart: a controller, and an agent on each node")
    demo.store.parent.mkdir(mode=0o700)
    told = values(
        demo.store.parent,
        deadline=f"{DEADLINE_S}s",
        cpuDevices=CPU_DEVICES,
        agents=agents(),
    )
    told["controller"] |= {
        "nodeSelector": {"kubernetes.io/hostname": CONTROLLER},
        "resources": {"requests": {"cpu": "500m"}},
    }
    (demo.place / "values.yaml").write_text(yaml.safe_dump(told))
    demo.unidle("kube", "install", "--values", str(demo.place / "values.yaml"))
    demo.until("all agents have joined", all_watched)
    demo.unidle("kube", "doctor")


def all_watched(view: View) -> bool:
    """Whether the agent of each node has joined and reads something."""
    found = [any(not one.why_not for one in node.values()) for node in view.watching.values()]
    return sum(found) == NODES


def played(demo: KubeDemo) -> int:
    """The demo itself; its exit code."""
    tell("two jobs of low priority have a device on n2 and one on n3")
    small = [submitted(demo, small_job(demo, node)) for node in ("n2", LOST)]
    demo.until("both are placed", lambda view: all(placed(view, job) for job in small))
    file = gpt_job(demo)
    demo.job = submitted(demo, file)

    tell(f"4 ranks train a small GPT; at step {KILLED_AT} one of them is killed")
    job = demo.trained_to(1, KILLED_AT)
    demo.kubectl("get", "pods", "-n", "unidle-system", "-o", "wide", "-l", "unidle.dev/job")
    pid = min(process_tree.with_environment(f"UNIDLE_JOB={demo.job}", "UNIDLE_RANK=1"))
    os.kill(pid, signal.SIGKILL)
    tell(
        f"kill -9 {pid}: rank 1, in the pod on {job.attempts[-1].places[1].node}; it starts again in this pod"
    )

    demo.trained_to(2, LOST_AT)
    tell(f"{LOST} is lost: its kubelet, its containers and its network")
    demo.kube("kill", LOST)
    demo.lost(LOST)
    demo.trained_to(3, 1)
    tell(
        "the job continues from its newest checkpoint on the nodes that are left; rank 2 is profiled meanwhile"
    )
    demo.kubectl("get", "pods", "-n", "unidle-system", "-o", "wide", "-l", "unidle.dev/job")
    profiled = demo.unidle("profile", demo.job, "--rank", "2", "--seconds", "5", check=False)
    demo.until("the job has ended", lambda view: view.jobs[demo.job].terminal)
    return checked(demo) or profiled.returncode


def small_job(demo: KubeDemo, node: str) -> Path:
    """A job of one rank on a node, which a job of high priority may stop."""
    job = {
        "name": f"small-{node}",
        "command": ["sleep", "infinity"],
        "preemption": "low",
        "idle_ok": True,
        "node_labels": {"kubernetes.io/hostname": node},
        "grace_s": 1,
        "pod": pod_section(),
    }
    path = demo.place / f"small-{node}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def gpt_job(demo: KubeDemo) -> Path:
    """examples/gpt, with what its pods need. The checkpoints are on a volume that all nodes have."""
    path = demo.place / "gpt" / "job.yaml"
    job = yaml.safe_load(path.read_text())
    # with `python` as the one that has PyTorch
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    # without cores that are requested, a kubelet lets pods have what all others leave
    job["requests"] = {"cpus": 0.4}
    job["restart"] |= {"warm": True}  # importing PyTorch takes longer than all steps
    job["command"][job["command"].index("--steps") + 1] = str(STEPS)
    job |= {"workdir": str(path.parent), "env": env, "preemption": "high", "pod": pod_section(path.parent)}
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


def submitted(demo: KubeDemo, file: Path) -> str:
    done = demo.unidle("submit", str(file), "--json", stdout=subprocess.PIPE)
    return str(json.loads(done.stdout)["job"])


def placed(view: View, job: str) -> bool:
    found = view.jobs.get(job)
    return found is not None and bool(found.attempts)


def checked(demo: KubeDemo) -> int:
    """What the commands show in the end; 0 where all of it holds."""
    code = 0
    report = demo.place / "report.html"
    for words in (
        ("list", "--all"),
        ("explain", demo.job),
        ("ledger", "--job", demo.job),
        ("ledger", "--check"),
        ("report", demo.job, "--out", str(report)),
    ):
        tell("unidle " + " ".join(words))
        code = demo.unidle(*words, check=False).returncode or code
    opened(report)
    return demo.end(code)


def opened(report: Path) -> None:
    """In the user's browser; on a machine without a display, a picture by Chromium if it is there."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(report.as_uri())
        return
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        return
    picture = report.with_suffix(".png")
    words = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1280,2400",
        f"--screenshot={picture}",
    ]
    words.append(f"--user-data-dir={report.parent / 'home' / 'browser'}")
    subprocess.run([chromium, *words, report.as_uri()], check=False, capture_output=True, timeout=120)
    if picture.exists():
        tell(f"the report as a browser shows it: {picture}")


def run(words: list[str], *, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command to its end, which ends the demo where it fails."""
    done = subprocess.run(words, check=False, text=True, stdin=subprocess.DEVNULL, **more)
    if check and done.returncode != 0:
        sys.exit(f"demo: this failed with exit code {done.returncode}: {' '.join(words)}")
    return done


if __name__ == "__main__":
    main()
