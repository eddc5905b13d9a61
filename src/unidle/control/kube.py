"""A controller of a Kubernetes cluster: its client, and the engine over pods that dial the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.clock import Clock, boottime_ns
from unidle.control.kube_fleet import FleetFileGiven, KubeFleet, open_kube_fleet
from unidle.control.kube_objects import KubeObjects
from unidle.control.store_files import say_line
from unidle.engine.hosts.timing import HostsTiming, S
from unidle.engine.kube.engine import WRITE_NS, KubeEngine
from unidle.engine.kube.hub_secret import HubSecret
from unidle.engine.kube.manifest import PodSettings, place_of
from unidle.engine.kube.sources import KubeSources
from unidle.engine.kube.token_reviews import TokenReviews
from unidle.errors import BadInput
from unidle.events.hosts import OtherPod
from unidle.fleet import HOSTS, Fleet, Node
from unidle.hub.server import HubServer
from unidle.kube.access import ClusterAccess
from unidle.kube.client import ApiClient, open_client
from unidle.kube.cluster_fleet import ClusterFleet
from unidle.kube.kubeconfig import named_access
from unidle.kube.nodes import FleetRules
from unidle.kube.objects import NODES, PODS, RESOURCE_SLICES, UNIDLE_JOBS
from unidle.kube.protocol import EVERYTHING, KubeError, KubeWriter, Selected
from unidle.kube.reflector import follow
from unidle.kube.writer import open_writer

if TYPE_CHECKING:
    from unidle.control.loop import Controller
    from unidle.events.types import Event

START_WITHIN_NS: Final = 600 * S
"""For the boxes of a gang: an image may have to be pulled first."""
_LIST_S: Final = 60.0
_WRITE_S: Final = 4.0  # of one request, at most
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - what is not to be dialled


@dataclass(frozen=True, slots=True)
class KubeWish:
    """Which cluster, and what its pods have. ``kubeconfig`` and ``context`` None: as kubectl finds them.

    ``hub_addresses``: each a ``HOST:PORT`` by which pods reach the controller; empty: where it listens. ``cpu_devices``: of each
    node without GPUs. ``agents``: NAMESPACE/NAME of the agents' service account; empty: the usual name in ``namespace``.
    ``agent_hub``: NAMESPACE/NAME of the ConfigMap in which agents find the controller; empty: it is not written.
    ``hook_namespace``: of Jobs with commands of the site; empty: there are none. ``hook_image`` empty: ``box_image``. ``fleet``: what --fleet declares. ``hub_secret``: NAMESPACE/NAME of the Secret that the hubs of several controllers share; empty: there is one controller.
    """

    box_image: str
    image: str = ""
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = ""
    hub_addresses: tuple[str, ...] = ()
    cpu_devices: int = 0
    agents: str = ""
    agent_hub: str = ""
    hook_namespace: str = ""
    hook_image: str = ""
    fleet: FleetFileGiven | None = None
    hub_secret: str = ""


@dataclass(frozen=True, slots=True)
class KubeController:
    """Who drives the cluster. ``runs``: the run root of the store; ``nodes``: those that the log has; ``taken``: of which others use something, with their pods. ``may_write``: whether the store's lease surely holds."""

    clock: Clock
    fence: int
    timing: HostsTiming
    may_write: Callable[[], bool]
    runs: Path
    nodes: tuple[Node, ...] = ()
    taken: Mapping[str, tuple[OtherPod, ...]] = field(default_factory=dict)


def timing_of(deadline_ns: int) -> HostsTiming:
    return HostsTiming(deadline_ns=deadline_ns, start_within_ns=START_WITHIN_NS)


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """unidle's own objects in a cluster. ``jobs`` None: it does not serve them."""

    fleet: KubeFleet
    jobs: KubeObjects | None

    def heard(self, event: Event) -> None:
        """An event of the log."""
        if self.jobs is not None:
            self.jobs.heard(event)

    def turn(self, controller: Controller, now_ns: int) -> None:
        """After a turn of the loop: act on what objects ask for, and write what they do not show yet."""
        if self.jobs is not None:
            self.jobs.turn(controller, now_ns)
        self.fleet.turn(controller.view, now_ns)

    def close(self) -> None:
        if self.jobs is not None:
            self.jobs.close()
        self.fleet.close()


def kube_engine(
    hub: HubServer, wish: KubeWish, always: Callable[[Fleet], Fleet], by: KubeController
) -> tuple[KubeEngine, ClusterObjects]:
    """The engine, and the objects of the cluster. ``always`` changes each fleet that is declared, as options of the command
    do. Errors: BadInput, KubeError where the cluster does not answer."""
    client = open_client(access_of(wish), agent="unidle-controller")
    try:
        settings = _settings(hub, wish, client, by.runs)
        declared = open_kube_fleet(
            client, open_writer(client, timeout_s=_WRITE_S), _allow(by), wish.fleet, always
        )
        sources = _sources(client, settings, wish, declared)
    except BaseException:
        client.close()
        raise
    sources.also_close.append(client.close)
    try:
        declared.list_all(_LIST_S)
        sources.fleet.read_by(declared.rules(sources.fleet.rules))
        sources.list_all(_LIST_S)
        sources.fleet.was(by.nodes, by.taken)
        sources.at_start = sources.fleet.changes()
        reviews = TokenReviews(client.another(patience_s=0.0), settings)
        sources.also_close.append(reviews.close)
        hub.vouched_by(reviews)
        cluster = sources.fleet.fleet()
        fleet = declared.fleet(cluster.tiers, [node.id for node in cluster.nodes])
        known = _known(by.nodes, fleet, cluster)
        engine = KubeEngine(
            hub, known, by.clock, by.fence, by.timing, sources, settings, may_write=by.may_write
        )
        engine.say = say_line
        sources.fleet.held_by(engine.held)
        for fd in declared.wake_fds:
            engine.also_wake(fd)
        return engine, ClusterObjects(declared, _jobs(client, settings, engine, by))
    except BaseException:
        sources.close()
        declared.close()
        raise


def _jobs(
    client: ApiClient, settings: PodSettings, engine: KubeEngine, by: KubeController
) -> KubeObjects | None:
    """None where the cluster does not serve jobs of unidle, or this controller may not read them. Errors: KubeError."""
    which = Selected(settings.namespace)
    try:
        client.page(UNIDLE_JOBS, which, size=1)
    except KubeError as error:
        if error.status in (403, 404):
            return None
        raise

    writer = open_writer(client, timeout_s=_WRITE_S)
    objects = KubeObjects(follow(client, UNIDLE_JOBS, which), writer, settings.namespace, _allow(by))
    engine.arrivals = objects.arrivals
    for fd in objects.wake_fds:
        engine.also_wake(fd)
    return objects


def _allow(by: KubeController) -> Callable[[KubeWriter], None]:
    def allow(writer: KubeWriter) -> None:
        if by.may_write():
            writer.allow_until(boottime_ns() + WRITE_NS)

    return allow


def access_of(wish: KubeWish) -> ClusterAccess:
    """Errors: BadInput."""
    return named_access(wish.kubeconfig, wish.context)


def hub_secret_of(wish: KubeWish) -> HubSecret | None:
    """What several controllers share of their hubs. Errors: BadInput."""
    named = _named("--hub-secret", "Secret", wish.hub_secret)
    return (
        None if named is None else HubSecret(open_client(access_of(wish), agent="unidle-controller"), *named)
    )


def _settings(hub: HubServer, wish: KubeWish, client: ApiClient, runs: Path) -> PodSettings:
    hubs = tuple(_address(text) for text in wish.hub_addresses) or (hub.addresses[0],)
    if hubs[0][0] in _EVERYWHERE:
        raise BadInput(
            "listens on all addresses, and pods need one to dial", field="--listen", value=hubs[0][0],
            remedy="add --hub-address HOST:PORT, as pods reach this controller",
        )  # fmt: skip
    name = hashlib.sha256(hub.box_token("", "kubernetes").encode()).hexdigest()[:10]
    return PodSettings(
        wish.namespace or client.namespace,
        name,
        hubs,
        hub.authority,
        wish.box_image,
        wish.image,
        _named("--agent-account", "service account", wish.agents),
        _named("--agent-hub", "ConfigMap", wish.agent_hub),
        (wish.hook_namespace, wish.hook_image or wish.box_image) if wish.hook_namespace else None,
        runs,
    )


def _named(option: str, kind: str, text: str) -> tuple[str, str] | None:
    """Namespace and name of an object; None where none is given. Errors: BadInput."""
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise BadInput(f"names no {kind}", field=option, value=text, remedy="write NAMESPACE/NAME")
    return namespace, name


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host or not 0 < number < 65536:
        raise BadInput("is no address", field="--hub-address", value=text, remedy="write HOST:PORT")
    return host.strip("[]"), number


def _sources(client: ApiClient, settings: PodSettings, wish: KubeWish, declared: KubeFleet) -> KubeSources:
    rules = FleetRules(cpu_devices=wish.cpu_devices)
    fleet = ClusterFleet(rules, is_ours=lambda pod: place_of(settings, pod) is not None)
    slices = follow(client, RESOURCE_SLICES) if _has_slices(client) else None
    return KubeSources(
        follow(client, NODES),
        follow(client, PODS),
        slices,
        open_writer(client, timeout_s=_WRITE_S),
        fleet,
        declared,
    )


def _has_slices(client: ApiClient) -> bool:
    """Whether the cluster serves ResourceSlices, and this controller may read them. Errors: KubeError."""
    try:
        client.page(RESOURCE_SLICES, EVERYTHING, size=1)
    except KubeError as error:
        if error.status in (403, 404):
            return False
        raise
    return True


def _known(before: tuple[Node, ...], fleet: Fleet, cluster: Fleet) -> Fleet:
    """Nodes and tiers of the cluster, and nodes of the log that have left it: attempts may be there."""
    found, tiers = {node.id for node in cluster.nodes}, {tier.id for tier in cluster.tiers}
    left = [node for node in before if node.id not in found]
    nodes = [node if node.parent in tiers else replace(node, parent=cluster.tiers[0].id) for node in left]
    return replace(fleet, tiers=cluster.tiers, nodes=(*cluster.nodes, *nodes), source=HOSTS)
