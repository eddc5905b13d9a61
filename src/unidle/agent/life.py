"""The life of an agent's process: it finds the host, joins, serves until it is asked to leave, and leaves."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unidle import wire
from unidle.agent import slurm
from unidle.agent.agent import Agent, HubAddress
from unidle.agent.cuts import HostCuts, records
from unidle.agent.dial_address import DialAddress, own_address, read_join
from unidle.agent.found_node import FoundNode, find_node
from unidle.agent.join_file import JoinFile, read_join_file, read_pod_join
from unidle.agent.pods.boxes import BoxesInPods
from unidle.agent.pods.pod_resources import PodResources
from unidle.agent.state import AgentState, Membership
from unidle.clock import boot_id
from unidle.errors import BadInput, HubUnreachable
from unidle.hub import client, frames

TICK_S: Final = 0.25
BUSY_S: Final = 0.03
JOIN_WITHIN_S: Final = 60.0
"""A hub that cannot take a new host now, such as one that many join at once, is tried for so long."""
FOLLOW_EVERY_S: Final = 2.0
END_WITHIN_S: Final = 25.0
"""Boxes that are asked to end are waited for so long: Slurm kills 30 s after its SIGTERM."""
_DIALLING: Final = client.Dialling(first_ns=200_000_000, longest_ns=5_000_000_000)
_MOST_NAME: Final = 253

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """As on the command line; empty texts where nothing was given. ``hooks``: whether commands of the site run here.

    ``join``: HOST:PORT, or the absolute path of a file with it that is followed. ``pods``: the kubelet's directory of pods, where this agent is a pod itself; ``authority``: a file,
    then; ``pod_resources``: the kubelet's socket, then.
    """

    join: str
    token_file: str
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    address: str = ""
    state: str = ""
    cpu_devices: int | None = None
    end_boxes: bool = False
    kernel_log: str = ""
    hooks: bool = False
    pods: str = ""
    authority: str = ""
    pod_resources: str = ""


@dataclass(slots=True)
class _Asked:
    """What signals asked for."""

    leave: str = ""
    at_once: bool = False
    look: bool = False


def run_agent(options: AgentOptions, data_dir: Path, say: Say) -> int:
    """The whole life; its exit code. ``say`` is called with lines for the user.

    Errors: :class:`BadInput` for options, files and tokens, :class:`CannotRun` without devices or next to another
    agent, :class:`HubUnreachable`.
    """
    hub = read_join(options.join)
    allocation = slurm.allocation()
    name = options.node or (allocation.node if allocation else "") or socket.gethostname()
    if not name.isprintable() or "/" in name or not 0 < len(name) <= _MOST_NAME:
        raise BadInput("cannot be the name of a node", field="--node", value=name, remedy="give a host name")
    state = AgentState(Path(options.state) if options.state else data_dir / "agent" / name)
    try:
        join, member = _joining(options, state, name, hub)
        address = options.address or _address(hub, member)
        log = options.kernel_log
        cuts = None if options.pods else HostCuts(records(state.path))
        found = find_node(name, address, options.labels, options.cpu_devices, log, cuts)
        has_gpus = any(device.kind == "gpu" for device in found.node.devices)
        cpu_devices = 0 if has_gpus else options.cpu_devices  # a host that loses its GPUs has no others

        def address_now() -> str:
            with suppress(HubUnreachable):  # else it stays the last one
                return options.address or own_address(life.hub)
            return life.agent.found.node.address

        def find() -> FoundNode:
            return find_node(name, address_now(), options.labels, cpu_devices, log, cuts)

        with _signals() as (asked, bell):
            life = _Life(state, hub, join, member, found, find, say, options)
            life.address_now, life.agent.cuts = address_now, cuts
            try:
                life.serve(asked, bell, allocation)
                life.leave(asked, bell, end_boxes=options.end_boxes or allocation is not None)
            finally:
                life.close()
    finally:
        state.close()
    return 0


def _joining(
    options: AgentOptions, state: AgentState, name: str, hub: DialAddress
) -> tuple[JoinFile, Membership | None]:
    """What proves who this agent is: in a pod the token that the kubelet keeps there, else the join file or what a join left."""
    if options.pods:
        join = read_pod_join(options.token_file, options.authority)
        return join, Membership(name, join.token, str(hub), join.authority)
    member = _membership(state, name)
    return _join_file(options.token_file, member), member


def _membership(state: AgentState, name: str) -> Membership | None:
    member = state.membership()
    return member if member is not None and member.node == name else None


def _join_file(path: str, member: Membership | None) -> JoinFile:
    """The join file; a host that is a member does not need it any more."""
    if member is not None and not os.path.lexists(path):
        return JoinFile(member.token, member.authority)
    return read_join_file(path)


def _address(hub: DialAddress, member: Membership | None) -> str:
    """This host's address; one that is a member waits for its name server or network."""
    while True:
        try:
            return own_address(hub)
        except HubUnreachable:
            if member is None:
                raise
            time.sleep(1.0)


class _Life:
    """One agent and its client."""

    def __init__(
        self, state: AgentState, hub: DialAddress, join: JoinFile, member: Membership | None, found: FoundNode,
        find: Callable[[], FoundNode], say: Say, options: AgentOptions,
    ) -> None:  # fmt: skip
        self._state, self.hub, self._join, self._say = state, hub, join, say
        self._join_given, self._follow_due_s = options.join, 0.0
        self._member = member is not None
        self._token = member.token if member is not None else join.token
        self._told = self._unknown = ""
        self.address_now: Callable[[], str] = lambda: found.node.address
        self._until_s = time.monotonic() + JOIN_WITHIN_S
        self._left = False
        address = HubAddress(str(hub), join.authority)
        pods = BoxesInPods(Path(options.pods), state.boxes, join.authority) if options.pods else None
        self.agent = Agent(state, address, found, find, self._send, hooks=options.hooks, pods=pods)
        self.agent.pod_resources = PodResources(options.pod_resources) if options.pods else None
        try:
            self._client = client.HubClient(
                (hub.host, hub.port), join.authority, self._hello, self._keep, _DIALLING
            )
        except ValueError as error:
            self.agent.close()
            raise BadInput(
                f"the authority in it cannot be used: {error}",
                field="--token-file",
                remedy="copy the file again",
            ) from None

    # -- called in the thread of the client -------------------------------------------------------

    def _hello(self) -> frames.Hello:
        """Each connection may be from another address: peers of a gang use the one of the last."""
        self.agent.at_address(self.address_now())
        token = self._join.token_now() if self._join.token_file else self._token
        return frames.Hello(
            v=wire.VERSION, kind="agent", node=self.agent.found.node.id, token=token, boot=boot_id(),
            agent=self.agent.held(),
        )  # fmt: skip

    def _keep(self, token: str) -> None:
        if self._join.token_file:
            return  # it is the kubelet that keeps the token of a pod
        node = self.agent.found.node.id
        self._state.keep(Membership(node, token, str(self.hub), self._join.authority))
        self._token = token

    # -- the loop ----------------------------------------------------------------------------------

    def serve(self, asked: _Asked, bell: int, allocation: slurm.Allocation | None) -> None:
        """Until a signal comes, or the end of the allocation is near."""
        poller = select.poll()
        for fd in (bell, self._client.wake_fd):
            poller.register(fd, select.POLLIN)
        while not asked.leave:
            wait_s = BUSY_S if self.agent.is_busy else TICK_S
            poller.poll(int(wait_s * 1000))
            _drained(bell)
            for event in self._client.poll():
                self._take(event)
            if asked.look:
                asked.look = False
                self.agent.look_soon()
            self.agent.tick()
            self._say_what_is_not_known()
            self._follow(asked)
            if allocation is not None and allocation.is_ending(time.time()):
                asked.leave = f"Slurm's allocation {allocation.job} ends"

    def _say_what_is_not_known(self) -> None:
        devices = self.agent.pod_resources
        why = devices.why_not if devices is not None else ""
        if why != self._unknown:
            self._unknown = why
            self._say(f"which devices each pod has is {f'not known: {why}' if why else 'known again'}")

    def _follow(self, asked: _Asked) -> None:
        """Dial where the file has the address now: on a cluster a controller that moved writes it there."""
        if not self._join_given.startswith("/") or time.monotonic() < self._follow_due_s:
            return
        self._follow_due_s = time.monotonic() + FOLLOW_EVERY_S
        if self._join.is_of_another_hub:
            asked.leave = "the hub has another authority"  # the kubelet starts the next agent
            return
        with suppress(BadInput):  # half a file, or none: the last address stays
            if (found := read_join(self._join_given)) != self.hub:
                self._say(f"the controller is at {found} now")
                self.hub = found
                self._client.redirect((found.host, found.port))

    def _take(self, event: client.ClientEvent) -> None:
        if isinstance(event, client.Welcomed):
            self._say(f"{self.agent.found.node.id} has joined {self.hub}")
            self._member, self._told = True, ""
            for why in self.agent.connected(event.welcome.fence):
                self._say(why)
        elif isinstance(event, client.Acknowledged):
            self.agent.acknowledged(event.n)
        elif isinstance(event, client.Lost):
            self.agent.disconnected()
            self._lost(event)
        else:
            self.agent.take(event)

    def _send(self, frame: frames.FromClient) -> int:
        """The number of the next pong: once that is acknowledged, the frame was received."""
        self._client.send(frame)
        return self._client.pongs + 1

    def _lost(self, event: client.Lost) -> None:
        """The connection is over, or none came about. Errors: what the user has to change."""
        refused = event.refused
        if refused is not None and _is_about_token(refused) and not self._join.token_file:
            if self._token == self._join.token:
                raise BadInput(
                    f"the controller refuses it: {refused.why}", field="--token-file", remedy=refused.remedy
                )
            self._token = self._join.token  # of a controller that was set up again
            return
        if not self._member:
            final, remedy = _judged(event.why)
            if refused is not None and _is_about_version(refused):
                final, remedy = True, refused.remedy
            if final or time.monotonic() > self._until_s:
                raise HubUnreachable(event.why, field="--join", value=str(self.hub), remedy=remedy)
        if event.why != self._told:
            self._told = event.why
            self._say(f"{self.hub}: {event.why}; dials again")

    # -- the end -----------------------------------------------------------------------------------

    def leave(self, asked: _Asked, bell: int, *, end_boxes: bool) -> None:
        """Say bye; with ``end_boxes`` also end the boxes, and wait for that until a second signal comes."""
        self._say(f"{self.agent.found.node.id} leaves: {asked.leave}")
        self._bye(asked.leave)
        asked.at_once = False
        until_s = time.monotonic() + END_WITHIN_S
        while end_boxes and not self.agent.boxes.end() and not asked.at_once:
            if time.monotonic() > until_s:
                self._say("boxes that did not end in time are left behind")
                return
            select.select([bell], [], [], TICK_S)
            _drained(bell)

    def _bye(self, why: str | None) -> None:
        if not self._left:
            self._left = True
            self._client.close(why)

    def close(self) -> None:
        self._bye(None)
        self.agent.close()


def _is_about_token(refused: frames.Refused) -> bool:
    return "token" in refused.why


def _is_about_version(refused: frames.Refused) -> bool:
    return "version" in refused.why


def _judged(why: str) -> tuple[bool, str]:
    """Whether a first attempt that failed so cannot succeed later, and the remedy."""
    text = why.lower()
    if "refused" in text:
        return True, "start `unidle up --listen` there, or check the port"
    if "certificate" in text:
        return True, "copy the join file of this controller: --token-file has another authority"
    if "name or service" in text or "no address associated" in text:
        return True, "check the name of the host"
    return False, "check that the controller can be reached from here"


@contextmanager
def _signals() -> Iterator[tuple[_Asked, int]]:
    """What signals ask for, and a descriptor that is readable when one came."""
    asked = _Asked()
    bell, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def leave(number: int, _frame: object) -> None:
        asked.leave = asked.leave or f"the agent was stopped ({signal.Signals(number).name})"
        asked.at_once = True

    def look(_number: int, _frame: object) -> None:
        asked.look = True

    handlers = {signal.SIGTERM: leave, signal.SIGINT: leave, signal.SIGHUP: look}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    woken = signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    try:
        yield asked, bell
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(bell)
        os.close(ring)


def _drained(fd: int) -> None:
    with suppress(BlockingIOError):
        os.read(fd, 4096)
