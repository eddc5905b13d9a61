"""``unidle up``: serves a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unidle.api.fleets import find_fleet_and_channels, looked_at, with_devices_of_jobs
from unidle.api.stores import make_parent
from unidle.cli.common import (
    CpuDevicesOption,
    FleetOption,
    LocalStoreOption,
    StoreModeOption,
    clock_time,
    data_dir,
    mode_of,
    store_address,
)
from unidle.cli.option_set import with_options
from unidle.cli.run import (
    ProfileOption,
    ProgressOption,
    Signals,
    caught,
    progress_of,
    told_what_is_left,
)
from unidle.cli.times import seconds_of
from unidle.cli.up_fleet import fleet_of_cluster, fleet_of_hosts
from unidle.errors import BadInput
from unidle.words import counted, does

if TYPE_CHECKING:
    from unidle.cli.live import Live
    from unidle.control.hosts import HostsSession, HostsWish
    from unidle.control.kube import ClusterObjects, KubeWish
    from unidle.control.session import ControllerSession
    from unidle.events.types import Event
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.fleet import Fleet
    from unidle.hub.server import SiteFiles
    from unidle.store.protocol import Store
    from unidle.view.state import View

_NAMED: Final = 8  # adopted jobs that are named
_DEADLINE_LEAST_S: Final = 5.0
_DEADLINE_MOST_S: Final = 3600.0


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("up")(up)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Options of the command, in the order of its help."""

    # fmt: off
    store: LocalStoreOption = None
    fleet: FleetOption = None
    cpu_devices: CpuDevicesOption = None
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", show_default=False, help="Run jobs on the hosts that join here (`unidle agent`), instead of on this machine."),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="TIME", show_default=False, help="With --listen: how long a host runs ranks without a word from the controller; default: 30s. Then it ends them, and they may start elsewhere."),
    ] = None
    hub_name: Annotated[
        list[str] | None,
        typer.Option("--hub-name", metavar="NAME", show_default=False, help="With --listen: another name or address by which hosts reach this one; may be repeated."),
    ] = None
    certificate: Annotated[
        str | None,
        typer.Option("--certificate", metavar="FILE", show_default=False, help="With --listen: the site's certificate in PEM; default: one of an own authority. Needs --key."),
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", show_default=False, help="Key of --certificate."),
    ] = None
    authority: Annotated[
        str | None,
        typer.Option("--authority", metavar="FILE", show_default=False, help="Certificates in PEM with which hosts verify --certificate; default: those of their system."),
    ] = None
    kubeconfig: Annotated[
        str | None,
        typer.Option("--kubeconfig", metavar="FILE", show_default=False, help="With --listen: run jobs in pods of the cluster that this file names. `in-cluster`: of the one that this process runs in."),
    ] = None
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", show_default=False, help="Context of the kubeconfig; default: its current one. Without --kubeconfig, the file is found as by kubectl."),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAME", show_default=False, help="On a cluster: namespace of the pods; default: that of the context."),
    ] = None
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", show_default=False, help="On a cluster: image of jobs that name none."),
    ] = None
    box_image: Annotated[
        str | None,
        typer.Option("--box-image", metavar="IMAGE", show_default=False, help="On a cluster: unidle's own image, from which each pod gets its first process."),
    ] = None
    hub_address: Annotated[
        list[str] | None,
        typer.Option("--hub-address", metavar="HOST:PORT", show_default=False, help="On a cluster: where pods reach this controller; default: that of --listen. May be repeated: they are tried in turn."),
    ] = None
    agent_account: Annotated[
        str | None,
        typer.Option("--agent-account", metavar="NAMESPACE/NAME", show_default=False, help="On a cluster: service account of the agents; default: unidle-agent in --namespace."),
    ] = None
    agent_hub: Annotated[
        str | None,
        typer.Option("--agent-hub", metavar="NAMESPACE/NAME", show_default=False, help="On a cluster: ConfigMap from which agents read where this controller is; it writes that there."),
    ] = None
    hook_namespace: Annotated[
        str | None,
        typer.Option("--hook-namespace", metavar="NAMESPACE", show_default=False, help="On a cluster: run commands of the fleet file (remedies, own checks) on nodes, as Jobs in this namespace, which has to allow privileged pods."),
    ] = None
    hook_image: Annotated[
        str | None,
        typer.Option("--hook-image", metavar="IMAGE", show_default=False, help="With --hook-namespace: image with what these commands need; default: --box-image. The node's files are below /host."),
    ] = None
    hub_secret: Annotated[
        str | None,
        typer.Option("--hub-secret", metavar="NAMESPACE/NAME", show_default=False, help="On a cluster: Secret with what several controllers of one store share; the first one fills it."),
    ] = None
    commands: Annotated[
        str | None,
        typer.Option("--commands", metavar="HOST:PORT", show_default=False, help="On a cluster: where the API server reaches this controller, for commands with --context."),
    ] = None
    standby: Annotated[bool, typer.Option("--standby", help="With --listen: wait while another controller serves the store, and continue where it ends.")] = False
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when no job is left.")] = False
    profile: ProfileOption = False
    progress: ProgressOption = "auto"
    mode: StoreModeOption = "0600"
    # fmt: on


@with_options(options=UpOptions)
def up(options: UpOptions) -> None:
    """Drive the jobs of a store until stopped. Jobs that still run are adopted.

    SIGTERM leaves the ranks running for the next `unidle up`; those on other hosts (--listen) until the deadline. Ctrl-C stops them and puts their jobs back into the
    queue; a second Ctrl-C kills them at once.
    """
    wish = _hosts_of(options)
    if wish is not None:
        sys.exit(_up_hosts(options, wish))
    found, channels = find_fleet_and_channels(options.fleet, options.cpu_devices)
    found = looked_at(found) if options.profile else found
    sys.exit(_up(found, channels, options))


def _hosts_of(options: UpOptions) -> HostsWish | None:
    """What ``--listen`` requests. Errors: BadInput for an option that needs it, or that it excludes."""
    named = {
        "--deadline": options.deadline,
        "--certificate": options.certificate,
        "--key": options.key,
        "--authority": options.authority,
        "--hub-name": options.hub_name,
        "--kubeconfig": options.kubeconfig,
        "--context": options.context,
        "--standby": options.standby,
    }
    if options.listen is None:
        if given := [name for name, value in named.items() if value]:
            raise BadInput(
                "is for a controller that hosts join", field=given[0], remedy="add --listen HOST:PORT"
            )
        return None
    from unidle.control.hosts import DEADLINE_NS, HostsWish

    kube = _kube_of(options)
    if options.cpu_devices is not None and kube is None:
        raise BadInput(
            "is not possible with --listen", field="--cpu-devices", remedy="use it with `unidle agent`"
        )
    deadline_ns = DEADLINE_NS
    if options.deadline is not None:
        given_s = seconds_of("--deadline", options.deadline, least=_DEADLINE_LEAST_S, most=_DEADLINE_MOST_S)
        deadline_ns = int(given_s * 1e9)
    return HostsWish(options.listen, deadline_ns, tuple(options.hub_name or ()), _site_of(options), kube)


def _kube_of(options: UpOptions) -> KubeWish | None:
    """Which cluster ``up`` is for, if it is. Errors: BadInput for an option that needs one."""
    if options.kubeconfig is None and options.context is None:
        named = {
            "--namespace": options.namespace,
            "--image": options.image,
            "--box-image": options.box_image,
            "--hub-address": options.hub_address,
            "--agent-account": options.agent_account,
            "--agent-hub": options.agent_hub,
            "--hook-namespace": options.hook_namespace,
            "--hook-image": options.hook_image,
            "--hub-secret": options.hub_secret,
            "--commands": options.commands,
        }
        if given := [name for name, value in named.items() if value]:
            raise BadInput("is for a Kubernetes cluster", field=given[0], remedy="add --kubeconfig FILE")
        return None
    from unidle.control.kube import KubeWish

    if options.hook_image and not options.hook_namespace:
        raise BadInput("is for --hook-namespace", field="--hook-image", remedy="give both")
    if not options.box_image:
        raise BadInput(
            "is needed on a cluster",
            field="--box-image",
            remedy="name the image with unidle's box: --box-image IMAGE",
        )
    return KubeWish(
        options.box_image, options.image or "", options.kubeconfig, options.context, options.namespace or "",
        tuple(options.hub_address or ()), options.cpu_devices or 0, options.agent_account or "",
        options.agent_hub or "", options.hook_namespace or "", options.hook_image or "",
        fleet_of_cluster(options.fleet), options.hub_secret or "",
    )  # fmt: skip


def _site_of(options: UpOptions) -> SiteFiles | None:
    """The site's own certificate, if one is given. Errors: BadInput for a part of it."""
    certificate, key, authority = options.certificate, options.key, options.authority
    if certificate and key:
        from unidle.hub.server import SiteFiles

        return SiteFiles(certificate, key, authority)
    if certificate or key or authority:
        raise BadInput("--certificate and --key belong together", field="--certificate", remedy="give both")
    return None


def _up_hosts(options: UpOptions, wish: HostsWish) -> int:
    """Serve the hosts that join; the exit code."""
    from unidle.cli.standby import Standby
    from unidle.control.hosts import take_up_hosts

    fleet, channels = fleet_of_hosts(None if wish.kube is not None else options.fleet)
    fleet = looked_at(fleet) if options.profile else fleet
    live, store, address = _opened(options)
    with caught() as signals, ExitStack() as stack:
        standby = None
        if options.standby:
            standby = Standby(store, signals, live, options.commands or "")
            stack.callback(standby.close)
        taken = take_up_hosts(store, fleet, data_dir(), wish, channels, address, standby)
        hosts = stack.enter_context(taken)
        if standby is not None:
            standby.close()
        host, port = hosts.address
        where = _host_port(host, port)
        if wish.kube is not None:
            nodes = counted(len(hosts.session.controller.view.fleet.nodes), "node")
            live.hint(
                f"serving {address} on {nodes} of the cluster; pods dial {where} (pid {os.getpid()}); Ctrl-C stops"
            )
            _serve_commands(stack, options, hosts, address, wish.kube)
        else:
            live.hint(f"serving {address} on the hosts that join {where} (pid {os.getpid()}); Ctrl-C stops")
            dialled = _host_port(hosts.host, port)
            live.hint(f"on each host: unidle agent --join {dialled} --token-file COPY_OF {hosts.join_file}")
        _serve(hosts.session, signals, live, options.until_idle, address, hosts.objects)
    store.close()
    return 130 if signals.interrupts else 0


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _serve_commands(
    stack: ExitStack, options: UpOptions, hosts: HostsSession, address: str, wish: KubeWish
) -> None:
    """Serve commands of the cluster's users until the stack ends, with --commands."""
    if options.commands is None:
        return
    from unidle.gateway.open import open_gateway

    stack.callback(open_gateway(options.commands, address, hosts, wish).close)


def _opened(options: UpOptions) -> tuple[Live, Store, str]:
    from unidle.cli.live import Live
    from unidle.control.heap import map_large_blocks
    from unidle.store.open import open_store

    map_large_blocks()
    live, address = Live(progress_of(options.progress)), store_address(options.store)
    make_parent(address)
    return live, open_store(address, create=True, mode=mode_of(options.mode)), address


def _up(fleet: Fleet, channels: tuple[NoticeChannel, ...], options: UpOptions) -> int:
    from unidle.control.session import take_up

    live, store, address = _opened(options)
    discovered = options.fleet is None and options.cpu_devices is None
    fleet = with_devices_of_jobs(fleet, store) if discovered else fleet
    opened = take_up(
        store, fleet, data_dir(), "unidle up", channels=channels, profile_to=address, say=live.warning
    )
    with caught() as signals, opened as session:
        devices = counted(len(fleet.devices()), "device")
        live.hint(f"serving {address} with {devices} (pid {os.getpid()}); Ctrl-C stops")
        _serve(session, signals, live, options.until_idle, address)
    store.close()
    return 130 if signals.interrupts else 0


def _serve(
    session: ControllerSession, signals: Signals, live: Live, until_idle: bool, address: str,
    objects: ClusterObjects | None = None,
) -> None:  # fmt: skip
    controller = session.controller

    def tell(event: Event, _time: int) -> None:
        live.tell(controller.view, event)
        if objects is not None:
            objects.heard(event)

    controller.watch(tell)
    for line in adopted(controller.view):
        live.hint(line)
    with told_what_is_left(controller, live, address):
        done = _serving(session, signals, live, until_idle)

        def after_turn() -> bool:
            if objects is not None:
                objects.turn(controller, session.clock.now_ns())
            return done()

        controller.run(after_turn)


def adopted(view: View) -> Iterator[str]:
    """What a controller found running and waiting as it started: which jobs, how many ranks, since when."""
    live = sorted((view.jobs.open[name].attempts[-1].placed_ns, name) for name in view.live)
    for placed_ns, name in live[:_NAMED]:
        ranks = view.jobs.open[name].attempts[-1].ranks
        up = sum(rank.spawn_ns is not None and not rank.ended for rank in ranks)
        text = counted(len(ranks), "rank") if up == len(ranks) else f"{up} of {counted(len(ranks), 'rank')}"
        yield f"adopted {name}: {text}, running since {clock_time(placed_ns)}"
    if len(live) > _NAMED:
        yield f"adopted {counted(len(live) - _NAMED, 'more job')}"
    if waiting := len(view.jobs.open) - len(live):
        yield f"{counted(waiting, 'job')} {does(waiting, 'wait')}"


def _serving(
    session: ControllerSession, signals: Signals, live: Live, until_idle: bool
) -> Callable[[], bool]:
    controller = session.controller
    asked = 0

    def done() -> bool:
        nonlocal asked
        if signals.terminates:
            return True
        if signals.interrupts > asked:
            if asked == 0:
                controller.drain()
                live.hint("stopping every gang; Ctrl-C again kills at once")
            else:
                for job in sorted(controller.view.live):
                    controller.kill(job)
            asked = signals.interrupts
            controller.turn()
        if asked:
            return not controller.view.live
        return until_idle and controller.idle()

    return done
