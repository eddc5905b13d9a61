"""One node: a containerd and a kubelet in namespaces of their own, with the paths and addresses of a real machine.

In its mount namespace /run is empty, /var is a directory of the cluster, and a few settings of the kernel are plain files,
as each kubelet writes them and the machine's own have to stay. So sockets, volumes and logs of pods are where they are on
every node, for instance /var/lib/kubelet/pod-resources.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from kube_cluster import groups, network, pki
from kube_cluster.api import write_text
from kube_cluster.assets import Assets
from kube_cluster.layout import IMAGE, Layout
from kube_cluster.machine import cni_folder
from kube_cluster.processes import Starter

BIN: Final = "/var/opt/bin"
SOCKET: Final = "/run/containerd/containerd.sock"
_SETTINGS: Final = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Below /proc/sys, with the values that a kubelet wants."""
_TEMPORARY: Final = ("/run/", "/tmp/", "/var/tmp/")
_UNUSED: Final = (
    *(
        "io.containerd.nri.v1.nri",
        "io.containerd.snapshotter.v1.blockfile",
        "io.containerd.snapshotter.v1.erofs",
    ),
    *(
        "io.containerd.differ.v1.erofs",
        "io.containerd.tracing.processor.v1.otlp",
        "io.containerd.internal.v1.tracing",
    ),
)


def boot(starter: Starter, assets: Assets, index: int, name: str) -> None:
    """The node's namespaces, and its containerd with the image. :func:`prepare` has made its files."""
    layout = starter.layout
    groups.make(f"{layout.group}/{name}")
    anchor = starter.anchor(name, mounts=True)
    network.connect(layout, index, anchor, starter.state.nodes)
    starter.run(name, [groups.shell(), "-s"], _mount_script(layout, assets, name))
    daemon = f"{name}/containerd"
    starter.start(daemon, name, [f"{BIN}/containerd", "--config", "/var/opt/containerd.toml"])
    ask = [f"{BIN}/ctr", "--address", SOCKET, "--namespace", "k8s.io"]
    socket = Path(f"/proc/{anchor}/root{SOCKET}")

    def answers() -> bool:
        return socket.exists() and starter.succeeds(name, [*ask, "version"])

    starter.until(f"containerd of {name} answers", answers, [daemon])
    starter.run(name, [*ask, "images", "import", "/var/opt/image.tar"])


def load_image(starter: Starter, name: str, archive: Path) -> None:
    """Import the image of an archive, of OCI or of docker, into the node. Errors: CannotRun."""
    inside = starter.layout.node(name) / "var/opt/loaded.tar"
    shutil.copyfile(archive, inside)
    try:
        ask = [f"{BIN}/ctr", f"--address={SOCKET}", "--namespace=k8s.io"]
        starter.run(name, [*ask, "images", "import", "/var/opt/loaded.tar"])
    finally:
        inside.unlink()


def start_kubelet(starter: Starter, index: int, name: str) -> None:
    """The node's kubelet. The API server has to be ready."""
    words = [
        f"{BIN}/kubelet",
        "--config=/var/lib/kubelet/config.json",
        "--kubeconfig=/var/lib/kubelet/kubeconfig",
        f"--hostname-override={name}",
        f"--node-ip={starter.layout.address(index)}",
    ]
    starter.start(f"{name}/kubelet", name, words)


def prepare(layout: Layout, index: int, name: str, authority: pki.Authority) -> None:
    """The node's /var, with the certificates and settings of its daemons."""
    var = layout.node(name) / "var"
    for folder in (
        "opt/bin",
        "lib/kubelet/pki",
        "lib/containerd",
        "lib/cni",
        "log/pods",
        "log/containers",
        "tmp",
    ):
        (var / folder).mkdir(parents=True, exist_ok=True)
    (var / "run").symlink_to("/run")
    own = var / "lib/kubelet/pki"
    (own / "ca.crt").write_bytes(authority.file.read_bytes())
    user = f"system:node:{name}"
    authority.sign(own / "kubelet", user, names=[name, layout.address(index)])
    client = authority.sign(own / "client", user, ["system:nodes"])
    pki.write_kubeconfig(var / "lib/kubelet/kubeconfig", layout, authority.file, client, user)
    write_text(var / "lib/kubelet/config.json", json.dumps(kubelet_config(layout, name), indent=1))
    write_text(var / "opt/containerd.toml", containerd_config())
    write_text(var / "opt/cni/10-unidle.conflist", json.dumps(cni_config(layout, index), indent=1))
    (var / "opt/image.tar").hardlink_to(layout.image)
    for setting, value in _SETTINGS.items():
        write_text(layout.node(name) / "sys" / setting, f"{value}\n")


def _mount_script(layout: Layout, assets: Assets, name: str) -> str:
    """What the node's mount namespace has of its own; what it mounts later stays in there."""
    place = layout.node(name)
    settings = "".join(
        f"[ ! -e /proc/sys/{setting} ] || mount --bind '{place}/sys/{setting}' /proc/sys/{setting}\n"
        for setting in _SETTINGS
    )
    return (
        "set -e\n"
        f"{_forget(layout, assets)}"
        f"mount --bind -o ro '{assets.programs}' '{place}/var/opt/bin'\n"
        f"{settings}"
        f"echo {name} >/proc/sys/kernel/hostname\n"
        f"mount --rbind '{place}/var' /var\n"
        "mount -t tmpfs -o mode=755,size=64m tmpfs /run\n"
        "mkdir -p /run/containerd /run/netns /run/lock\n"
        "mount --make-rshared /\n"
    )


def _forget(layout: Layout, assets: Assets) -> str:
    """Commands that unmount what the node copied from this machine and would hold: namespaces, and what is temporary."""
    needed = (str(layout.folder) + "/", str(assets.folder) + "/")
    lines = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4]
        temporary = place.startswith(_TEMPORARY) and not any(path.startswith(f"{place}/") for path in needed)
        if temporary or after.startswith("nsfs "):
            lines.append(f"umount --lazy \"$(printf '{place}')\" 2>/dev/null || :\n")
    return "".join(reversed(lines))


def kubelet_config(layout: Layout, name: str) -> dict[str, Any]:
    """As kubelet reads it. Disk pressure is switched off: the disk is shared with everything else on this machine."""
    own = "/var/lib/kubelet/pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{own}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{own}/kubelet.crt",
        "tlsPrivateKeyFile": f"{own}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.group}/{name}",
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "5s",
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }


def containerd_config() -> str:
    """In TOML. Without the right to lower the score of a process (CAP_SYS_RESOURCE), runc fails unless it is restricted."""
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps(_UNUSED)}

[grpc]
  address = "{SOCKET}"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni_folder()}"]
    conf_dir = "/var/opt/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def cni_config(layout: Layout, index: int) -> dict[str, Any]:
    """Pods of the node are on a bridge of its namespace, with addresses that all other nodes have a route to."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": layout.pods(index)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/var/lib/cni",
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "unidle", "plugins": [bridge]}
