"""``unidle agent``: makes this host part of a fleet."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from unidle.cli.common import data_dir, warn
from unidle.cli.log_source import log_source
from unidle.cli.option_set import with_options
from unidle.errors import BadInput

_MOST_CPU_DEVICES = 4096


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("agent")(agent)


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """Options of the command, in the order of its help."""

    # fmt: off
    join: Annotated[
        str, typer.Option("--join", metavar="HOST:PORT", show_default=False, help="Address of the controller: that of `unidle up --listen`. An absolute path: a file with it, which is read again and again."),
    ]
    token_file: Annotated[
        str,
        typer.Option("--token-file", metavar="FILE", show_default=False, help="Copy of the join file that `unidle up --listen` names. Only its owner may read it."),
    ]
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", show_default=False, help="Label of the node; may be repeated."),
    ] = None
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NAME", show_default=False, help="Name of the node; default: that of Slurm inside an allocation, else the host name."),
    ] = None
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDRESS", show_default=False, help="Address at which other nodes reach this host; default: the one from which it reaches the controller."),
    ] = None
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="DIR", show_default=False, help="Directory of this user alone for the node's own token and the jobs' files; default: agent/NAME in the user's data directory."),
    ] = None
    cpu_devices: Annotated[
        int | None,
        typer.Option("--cpu-devices", metavar="N", min=0, max=_MOST_CPU_DEVICES, show_default=False, help="Number of CPU devices, if the host has no GPU; default: one per CPU. 0: join with GPUs only."),
    ] = None
    kernel_log: Annotated[
        str | None,
        typer.Option("--kernel-log", metavar="SOURCE", show_default=False, help="Kernel log in which faults are looked for, also by checks: kmsg, syslog, journal, off, or a log file to follow. Default: that of this host."),
    ] = None
    hooks: Annotated[
        Literal["refuse", "allow"],
        typer.Option("--hooks", help="Whether commands of the controller's fleet file (remedies, own checks) run on this host, as the user of this command."),
    ] = "refuse"
    end_boxes: Annotated[
        bool, typer.Option("--end-boxes", help="On SIGTERM, end the ranks on this host, too.")
    ] = False
    pods: Annotated[
        str | None,
        typer.Option("--pods", metavar="DIR", show_default=False, help="In a pod of a DaemonSet (deploy/kubernetes/agent.yaml): the kubelet's directory of pods. --token-file then has a token of the service account."),
    ] = None
    authority: Annotated[
        str | None,
        typer.Option("--authority", metavar="FILE", show_default=False, help="With --pods: certificate of the hub's authority in PEM."),
    ] = None
    pod_resources: Annotated[
        str | None,
        typer.Option("--pod-resources", metavar="SOCKET", show_default=False, help="With --pods: the kubelet's socket for which devices each pod has, usually /var/lib/kubelet/pod-resources/kubelet.sock. Without it that is not known."),
    ] = None
    # fmt: on


@with_options(options=AgentCommand)
def agent(options: AgentCommand) -> None:
    """Make this host part of a fleet, with its devices as found.

    SIGTERM: the node leaves the fleet, and its ranks continue until the controller ends them. After kill -9, the
    next agent finds them again. Inside a Slurm allocation the node leaves 30 s before the allocation ends, and
    its ranks end with it.

    Exit codes: 2 an option, the token file or the token is wrong, or the name is taken; 3 no device, or another
    agent runs; 4 the controller cannot be reached (no such host, connection refused), or is not the one of the token file.
    """
    from unidle.agent.life import AgentOptions, run_agent

    if bool(options.pods) != bool(options.authority):
        raise BadInput("--pods and --authority belong together", field="--pods", remedy="give both, or none")
    if options.pod_resources and not options.pods:
        raise BadInput("is for agents in pods", field="--pod-resources", remedy="add --pods, or leave it out")
    labels = dict(map(_label, options.label or ()))
    chosen = AgentOptions(
        join=options.join,
        token_file=options.token_file,
        labels=labels,
        node=options.node or "",
        address=options.address or "",
        state=options.state or "",
        cpu_devices=options.cpu_devices,
        end_boxes=options.end_boxes,
        kernel_log=log_source(options.kernel_log, "--kernel-log"),
        hooks=options.hooks == "allow",
        pods=options.pods or "",
        authority=options.authority or "",
        pod_resources=options.pod_resources or "",
    )
    sys.exit(run_agent(chosen, data_dir(), warn))


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput("is not a label", field="--label", value=text, remedy="such as --label rack=a1")
    return key.strip(), value.strip()
