"""A controller of many hosts: the hub that boxes and agents dial, the engine over them, and what agents see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from unidle.control.forecast import Forecaster
from unidle.control.gangs.host_stacks import HostStacks
from unidle.control.gangs.peer_clocks import PeerClocks
from unidle.control.gangs.stacks import GangStacks
from unidle.control.nodes.detectors import Detectors
from unidle.control.nodes.host_storage import HostStorage
from unidle.control.nodes.maintenance import NodeMaintenance
from unidle.control.services import ControllerServices
from unidle.control.session import (
    ControllerSession,
    HeldStore,
    dispatcher,
    driven,
    held_store,
    name_of_controller,
    retention_of,
    senders_of,
)
from unidle.engine.hosts.engine import HostsEngine
from unidle.engine.hosts.timing import HostsTiming
from unidle.engine.node_marks import NodeMarks
from unidle.fleet import HOSTS, Fleet, as_declared
from unidle.hub import frames
from unidle.hub.limits import HubLimits
from unidle.hub.place import FOLDER, JOIN
from unidle.hub.protocol import Peer
from unidle.hub.server import HubServer, SiteFiles, open_hub
from unidle.probe.detector import Detection, DetectorStatus
from unidle.store.protocol import Store
from unidle.view.watching import NO_AGENT

if TYPE_CHECKING:
    from ssl import SSLContext

    from unidle.control.gangs.host_profiler import HostProfiler
    from unidle.control.kube import ClusterObjects, KubeWish
    from unidle.engine.kube.engine import KubeEngine
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.view.state import View

DEADLINE_NS: Final = 30_000_000_000
JOIN_WITHIN_S: Final = 30.0
"""Agents that a controller found in the log have so long to join it."""
_MOST_SIGNS: Final = 100_000  # that wait for a turn of the loop


@dataclass(frozen=True, slots=True)
class HostsWish:
    """``listen``: ``HOST:PORT`` for boxes and agents; ``names``: more names of this host for the certificate that the
    hub makes, where ``site`` has none; ``deadline_ns``: how long ranks may run without a word from a controller.
    ``kube``: the hosts are the nodes of a cluster."""

    listen: str
    deadline_ns: int
    names: tuple[str, ...]
    site: SiteFiles | None
    kube: KubeWish | None = None


def _seen_before(view: View) -> list[DetectorStatus]:
    """What the log has of agents that could see."""
    return [
        DetectorStatus(node, detector, "")
        for node, detectors in view.watching.items()
        for detector, told in detectors.items()
        if not told.why_not
    ]


class AgentSigns:
    """What agents saw of faults, as the detectors of this machine report it (``unidle.probe.watcher.Watcher``).

    ``there``: whether the agent of a node answers, where nothing else reports that it does not. ``before``: what the log
    has of who can see; an agent that has not joined this controller in time sees nothing any more.
    """

    def __init__(
        self, clocks: PeerClocks, there: Callable[[str], bool] | None = None, before: Iterable[DetectorStatus] = ()
    ) -> None:  # fmt: skip
        self._clocks, self._there, self._before = clocks, there, list(before)
        self._join_until_s = time.monotonic() + JOIN_WITHIN_S
        self._heard: list[Detection] = []
        self._seeing: dict[tuple[str, str], DetectorStatus] = {}

    def start(self) -> None:
        """Nothing to do: agents begin by themselves."""

    def hear(self, peer: Peer, seen: frames.Seen) -> None:
        """Take one observation of an agent. Times are moved to the controller's clock. What is no sign is passed over."""
        if seen.what != "signs" or peer.kind != "agent":
            return  # a box speaks for its job alone
        offset = self._clocks.offset(peer.id)
        offset_ns = 0 if offset is None else offset.offset_ns
        try:
            found = msgspec.convert(seen.body.get("detections", []), list[Detection])
            statuses = msgspec.convert(seen.body.get("statuses", []), list[DetectorStatus])
        except msgspec.ValidationError:
            return  # of another release: what it cannot say is not known
        for one in found[: max(_MOST_SIGNS - len(self._heard), 0)]:
            # an agent speaks for its own node and devices alone
            if not one.device or one.device.startswith(f"{peer.node}/"):
                self._heard.append(_moved(one, peer.node, offset_ns))
        for status in statuses:
            self._seeing[peer.node, status.detector] = replace(status, node=peer.node)

    def take(self, *, logged: bool) -> tuple[list[Detection], list[DetectorStatus]]:  # noqa: ARG002 - agents keep what was not received
        """What is new, and all that is known of who can see."""
        heard, self._heard = self._heard, []
        if self._before and time.monotonic() > self._join_until_s:
            for one in self._before:
                self._seeing.setdefault((one.node, one.detector), one)
            self._before = []
        seeing = list(self._seeing.values())
        if self._there is not None:
            seeing = [one if self._there(one.node) else replace(one, why_not=NO_AGENT) for one in seeing]
        return heard, seeing

    def close(self, *, logged: bool) -> None:
        """Nothing to do: agents keep what was not received."""


def _moved(one: Detection, node: str, offset_ns: int) -> Detection:
    return replace(one, node=node, onset_ns=one.onset_ns + offset_ns, signal_ns=one.signal_ns + offset_ns)


@dataclass(frozen=True, slots=True)
class HostsSession:
    """A session, where its hub listens, and the file with which agents join. ``state``: the directory of the store; ``host``: what they dial."""

    session: ControllerSession
    address: tuple[str, int]
    state: Path
    tls: SSLContext
    objects: ClusterObjects | None = None
    host: str = ""

    @property
    def join_file(self) -> Path:
        return self.state / FOLDER / JOIN


@dataclass(frozen=True, slots=True)
class OpenHosts:
    """The engine of hosts, and its hub: closed after the engine."""

    engine: HostsEngine
    hub: HubServer
    signs: AgentSigns
    storage: HostStorage
    marks: NodeMarks | None = None
    objects: ClusterObjects | None = None

    def hear(self, peer: Peer, seen: frames.Seen) -> None:
        """Take one observation of an agent."""
        self.signs.hear(peer, seen)
        self.storage.hear(peer, seen)

    def detectors(self, fleet: Fleet, file: Path, offset_ns: int) -> Detectors:
        """Judges what agents see."""
        return Detectors(replace(fleet, nodes=()), file, offset_ns, watcher=self.signs, storage=self.storage)


@contextmanager
def take_up_hosts(
    store: Store, fleet: Fleet, data_dir: Path, wish: HostsWish, channels: Sequence[NoticeChannel] = (), profile_to: str = "",
    standby: Callable[[str], None] | None = None,
) -> Iterator[HostsSession]:  # fmt: skip
    """As :func:`unidle.control.session.take_up` for `unidle up`, on the hosts that join. ``fleet`` has no nodes.

    Errors: also those of :func:`unidle.hub.server.open_hub`.
    """
    with held_store(store, data_dir, "unidle up", standby) as held:
        hosts = _open_hosts(wish, held, fleet)
        try:
            senders = senders_of(channels if hosts.objects is None else hosts.objects.fleet.channels)
            fleet = hosts.engine.fleet()
            view, clock = held.view, held.clock
            services = ControllerServices(
                NodeMaintenance(lambda: hosts.engine.commands, name_of_controller(view), hosts.marks),
                forecaster=Forecaster.of(view),
                notices=dispatcher(held, senders),
                detectors=hosts.detectors(fleet, held.state / "watch.json", clock.offset_ns),
                profiler=_profiler(held, fleet, hosts, profile_to),
                stacks=GangStacks(HostStacks(hosts.engine.ask_agent)),
                # of other hosts nothing is here; policies of a cluster may come later
                retention=None if hosts.objects is None else retention_of(held, profile_to, None),
            )
            with driven(held, hosts.engine, services) as session:
                address = hosts.hub.addresses[0]
                yield HostsSession(
                    session, address, held.state, hosts.hub.tls(), hosts.objects,
                    host=hosts.hub.dialled_as(address[0]),
                )  # fmt: skip
        finally:
            if hosts.objects is not None:
                hosts.objects.close()
            hosts.hub.close()


def _profiler(held: HeldStore, fleet: Fleet, hosts: OpenHosts, address: str) -> HostProfiler | None:
    """What agents are to profile, where that is switched on."""
    if not address or not fleet.profile.on:
        return None
    from unidle.control.gangs.host_profiler import HostProfiler
    from unidle.scope.continuous.process import ProfilerOrders

    orders = ProfilerOrders(address, "", held.lease.token, held.clock.offset_ns, fleet.profile)
    profiler = HostProfiler(
        orders, held.state / "profiler.err", hosts.engine.ask_agent, hosts.hub, held.clock
    )

    def heard(peer: Peer, seen: frames.Seen) -> None:
        hosts.hear(peer, seen)
        profiler.hear(peer, seen)

    hosts.engine.on_seen = heard
    return profiler


def _as_on_start(fleet: Fleet, declared: Fleet) -> Fleet:
    """Profiles are on where the command's option switched them on."""
    return replace(declared, profile=replace(declared.profile, on=True)) if fleet.profile.on else declared


def _of_cluster(
    hub: HubServer, wish: HostsWish, cluster: KubeWish, held: HeldStore, fleet: Fleet
) -> tuple[KubeEngine, ClusterObjects]:
    """The engine of a cluster, which takes over from what the log has."""
    from unidle.control.kube import KubeController, kube_engine, timing_of

    view, lease = held.view, held.lease
    by = KubeController(
        held.clock, lease.token, timing_of(wish.deadline_ns), lambda: held.store.is_fresh(lease), held.root,
        view.fleet.nodes if view.fleet.source == HOSTS else (),
        {name: taken.pods for name, taken in view.taken.items()},
    )  # fmt: skip
    return kube_engine(hub, cluster, partial(_as_on_start, fleet), by)


@contextmanager
def _shared(wish: KubeWish | None, state: Path) -> Iterator[None]:
    """The hub is opened with the secret and the authority that all controllers of the store have."""
    if wish is None or not wish.hub_secret:
        yield
        return
    from unidle.control.kube import hub_secret_of

    found = hub_secret_of(wish)
    assert found is not None
    try:
        found.fetch(state)
        yield
        found.store(state)
    finally:
        found.close()


def _open_hosts(wish: HostsWish, held: HeldStore, fleet: Fleet) -> OpenHosts:
    """Listen, and make the engine: nodes of the log are kept until their agents say more."""
    clock, lease, view, state = held.clock, held.lease, held.view, held.state
    limits = HubLimits(deadline_ns=wish.deadline_ns)
    with _shared(wish.kube, state):
        hub = open_hub(
            wish.listen, str(state), clock, lease.token, limits=limits, site=wish.site, names=wish.names,
            is_fresh=lambda: held.store.is_fresh(lease),
        )  # fmt: skip
    try:
        engine: HostsEngine
        marks: NodeMarks | None = None
        objects: ClusterObjects | None = None
        nodes = view.fleet.nodes if view.fleet.source == HOSTS else ()  # else those of this machine
        if wish.kube is not None:
            engine, objects = _of_cluster(hub, wish, wish.kube, held, fleet)
            marks = engine
        else:
            known = as_declared(replace(fleet, nodes=nodes, source=HOSTS))
            engine = HostsEngine(hub, known, clock, lease.token, HostsTiming(deadline_ns=wish.deadline_ns))
    except BaseException:
        hub.close()
        raise
    signs = AgentSigns(hub) if wish.kube is None else AgentSigns(hub, engine.has_agent, _seen_before(view))
    hosts = OpenHosts(engine, hub, signs, HostStorage(engine.ask_agent, hub), marks, objects)
    engine.on_seen = hosts.hear
    return hosts
