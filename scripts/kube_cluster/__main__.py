"""The commands of ``scripts/kube``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from unidle.errors import UnidleError

EXIT_CODES = """exit codes:
  0  done; status: every process runs and every node is Ready
  1  the cluster did not start, or not all could be removed; status: something has ended or is not Ready
  2  a wrong option, or a directory that is not of a cluster
  3  something is missing on this machine: root, a program, what make kube-assets builds
  4  the directory has a cluster already, or another command works on it
  130, 143  ended by SIGINT or SIGTERM; up takes down what it made before
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="scripts/kube",
        description="A Kubernetes cluster on this machine, for tests and the demo: real kubelets and containers.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start a cluster; prints the path of its kubeconfig last")
    start.add_argument("--nodes", type=int, default=3, metavar="N", help="real nodes (default 3)")
    start.add_argument(
        "--kwok", type=int, default=0, metavar="M", help="nodes only in the API server (default 0)"
    )
    end = commands.add_parser("down", help="end all of it and remove what it made")
    again = commands.add_parser(
        "restart", help="kill a process and start it again; or a node, as a reboot does"
    )
    cut = commands.add_parser(
        "kill", help="kill a process, or all of a node; it is away until restart starts it again"
    )
    for command in (again, cut):
        command.add_argument(
            "name", metavar="NAME", help="as `status` lists it, such as n2/kubelet, etcd, or n2 for a node"
        )
    image = commands.add_parser(
        "load", help="import an image into each node, such as scripts/kube_image.py makes"
    )
    image.add_argument("archive", type=Path, metavar="ARCHIVE", help="a tar in the form of OCI or of docker")
    show = commands.add_parser("status", help="what runs, which nodes are Ready, and the memory of each")
    show.add_argument("--json", action="store_true", help="as JSON")
    commands.add_parser("assets", help="build what a cluster is made of; the same as make kube-assets")
    for command in (start, end, again, cut, image, show):
        command.add_argument(
            "--dir",
            type=Path,
            metavar="D",
            help="directory of the cluster (default: .cache/kube of the checkout)",
        )
    return top


def run(given: argparse.Namespace) -> int:
    """Errors: UnidleError."""
    if given.command == "assets":
        from kube_cluster import assets

        assets.build()
        assets.build_helm()
    elif given.command == "up":
        from kube_cluster.up import up

        print(up(given.nodes, given.kwok, given.dir))
    elif given.command == "down":
        from kube_cluster.down import down

        down(given.dir)
    elif given.command in ("kill", "restart"):
        from kube_cluster.restart import kill, restart

        (kill if given.command == "kill" else restart)(given.name, given.dir)
    elif given.command == "load":
        from kube_cluster.load import load

        load(given.archive, given.dir)
    else:
        from kube_cluster.status import status

        return 0 if status(given.dir, as_json=given.json) else 1
    return 0


def main(words: Sequence[str] | None = None) -> int:
    given = parser().parse_args(words)
    signal.signal(signal.SIGTERM, _stop)
    try:
        return run(given)
    except UnidleError as error:
        print(f"kube: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"kube: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _stop(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    """The end as an exception, so that what was begun is undone."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
