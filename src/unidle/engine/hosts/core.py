"""The core of the engine of hosts: a state machine per box and per attempt, without a clock, a thread or a socket.

Time and what the hub reports come in; frames and observations go out (:class:`~unidle.engine.hosts.outbox.Outbox`). It
is model-checked in ``tests/engine_hosts/test_fencing_model.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from unidle import wire
from unidle.engine.hosts.box_link import BoxLink, BoxLinks
from unidle.engine.hosts.box_maker import BY_AGENTS, Hosting
from unidle.engine.hosts.box_marks import timed_marks
from unidle.engine.hosts.gang_cuts import GangCuts, why_not_in_parts
from unidle.engine.hosts.gang_looks import look_of
from unidle.engine.hosts.gang_moves import GangMoves, OrdersOf
from unidle.engine.hosts.gang_state import GangState, Key, RankState, adopted, fresh, never_started, numbers
from unidle.engine.hosts.gang_uses import GangUses
from unidle.engine.hosts.host_nodes import HostNode
from unidle.engine.hosts.host_word import HostWord
from unidle.engine.hosts.job_saves import attempt_of
from unidle.engine.hosts.kept_output import resume_of
from unidle.engine.hosts.outbox import HubFacts, Outbox
from unidle.engine.hosts.silence import lost_because, report_heard, report_silence
from unidle.engine.hosts.timers import Timers
from unidle.engine.hosts.timing import HostsTiming, S
from unidle.engine.protocol import HostClock, LiveAttempt, RankMarks, StartGang, StopGang, WatchGang
from unidle.fleet import Fleet
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset, Joined, Left, Peer, Received

_LOOK_NS = S  # between two looks at what is silent, or waits
_CLOCK_SOON_NS, _CLOCK_NS = S, 30 * S  # after an agent's hello, and from then on


class HostsCore:
    """``hub`` is asked, never waited for. ``orders`` makes what ranks are started with; ``hosting`` nodes and boxes."""

    def __init__(
        self, hub: HubFacts, fleet: Fleet, start_ns: int, fence: int, timing: HostsTiming, orders: OrdersOf,
        hosting: Hosting = BY_AGENTS,
    ) -> None:  # fmt: skip
        self._hub, self._timing, self._kept = hub, timing, hosting.kept
        self.out = Outbox(fence)
        self.boxes = BoxLinks(start_ns)
        self.nodes = hosting.nodes(fleet, start_ns, timing, self.out)
        self.maker = hosting.boxes(self.out, self.nodes, hub, timing)
        self.uses = GangUses(self.out, self.nodes)
        self.gangs: dict[Key, GangState] = {}
        self.of_job: dict[str, dict[int, GangState]] = {}
        self._open: set[str] = set()
        self._timers = Timers[tuple[str, str, int | str]]()
        self.cuts = (hosting.grants or GangCuts)(self.out, self.nodes, self.gangs)
        self.moves = GangMoves(self.out, self.boxes, self.maker, self.nodes, hub, timing, orders, self.cuts)
        self.host_word = HostWord(self)
        for link in self.nodes.at.values():
            self.look_at_node_at(link, start_ns + timing.silent_ns)

    # -- commands --------------------------------------------------------------------------------

    def adopt(self, live: Sequence[LiveAttempt], now_ns: int) -> None:
        """Take over attempts of an earlier controller. Their ranks may run until their boxes show otherwise.

        That controller may have acknowledged signs of the boxes until now, so their leases count from now.
        """
        self.out.now_ns = now_ns
        for attempt in live:
            gang = adopted(attempt)
            self._add(gang)
            self.maker.wanted(attempt.command)
            for node in gang.nodes:
                link = self.boxes.get(node, gang.job)
                link.heard_ns = max(link.heard_ns, now_ns)
                self._watch(link, now_ns + self._timing.silent_ns)
            self._look_at_gang_at(gang, now_ns)

    def start(self, command: StartGang, now_ns: int) -> None:
        self.out.now_ns = now_ns
        if command.job not in self.of_job or command.attempt not in self.of_job[command.job]:
            gang = fresh(command)
            self._add(gang)
            no_parts = why_not_in_parts(command, self.maker)
            if why := no_parts or self.maker.wanted(command):
                self.out.turn_away(gang, why, for_good=not no_parts)
                return
            self._look_at_gang_at(gang, now_ns + _LOOK_NS)
        self.moves.move(self.gangs[command.job, command.attempt])

    def stop(self, command: StopGang, now_ns: int) -> None:
        self.out.now_ns = now_ns
        key = (command.job, command.attempt)
        if key not in self.gangs:
            self._add(never_started(command))
        self.gangs[key].stop(command.grace_ns)
        self.moves.move(self.gangs[key])

    def watch(self, command: WatchGang, now_ns: int) -> None:
        """Have agents measure whether an attempt's devices are used."""
        self.out.now_ns = now_ns
        self.uses.watch(command)

    def release(self, job: str, attempt: int, now_ns: int) -> None:
        """Forget an attempt; boxes that are not connected now receive it with their next hello."""
        gang = self.gangs.pop((job, attempt), None)
        self.uses.forget((job, attempt))
        self.of_job.get(job, {}).pop(attempt, None)
        for node in self.cuts.released(gang):
            link = self.boxes.at.get((node, job))
            if link is not None and link.peer is not None:
                self._release(link.peer, attempt)
            if (on := self.nodes.at.get(node)) is not None and on.leaving:
                self.look_at_node_at(on, now_ns)

    def forget(self, node: str, now_ns: int) -> str | None:
        """Take a host out of the fleet that does not answer. Why not: empty if it leaves, None if the fleet has no such host."""
        self.out.now_ns = now_ns
        if self.nodes.agent(node) is not None:
            return "its agent is connected: stop it first"
        link = self.nodes.forget(node)
        if link is None:
            return None
        self.look_at_node_at(link, now_ns)
        return ""

    def finish(self, job: str) -> None:
        """The boxes of a job may go."""
        self._open.discard(job)
        self.of_job.pop(job, None)
        for link in self.boxes.of_job(job):
            if link.peer is not None:
                self.out.tell(link.peer.id, frames.End(self.out.fence))
            else:
                self.boxes.forget(link)
        self.maker.finish(job)

    def keep(self, jobs: Collection[str]) -> None:
        self._open.update(jobs)
        self.maker.keep(self._open)

    # -- what the hub reports --------------------------------------------------------------------

    def joined(self, event: Joined, now_ns: int) -> None:
        self.out.now_ns, peer = now_ns, event.peer
        if peer.kind == "reader":
            return
        heard_ns = self._hub.acknowledged_ns(peer.id) or now_ns
        if peer.kind == "box":
            link = self.boxes.join(peer, now_ns, heard_ns)
            self.maker.met(link)
            self._met(link, peer)
            self._watch(link, link.heard_ns + self._timing.silent_ns)
            return
        node = self.nodes.join(peer, heard_ns)
        if node is not None:
            self.look_at_node_at(node, node.heard_ns + self._timing.silent_ns)
            self.uses.joined(peer.node)
            self.cuts.joined(peer.node)
            self._timers.set(("clock", peer.node, ""), now_ns + _CLOCK_SOON_NS)
            for box in self.boxes.on_node(peer.node):
                box.asked_ns = None
                self.fetch(box)

    def left(self, event: Left, now_ns: int) -> None:
        """A connection is over. Where the hub has forgotten what it acknowledged last, that was before now."""
        self.out.now_ns = now_ns
        heard_ns = self._hub.acknowledged_ns(event.peer) or now_ns
        self.out.left(event.peer)
        link = self.boxes.leave(event.peer, heard_ns)
        if link is not None:
            self.fetch(link)
            self._watch(link, now_ns + _LOOK_NS)
            if link.job not in self._open:
                self.boxes.forget(link)
            return
        node = self.nodes.leave(event.peer, heard_ns, on_purpose=event.on_purpose)
        if node is not None:
            self.look_at_node_at(node, now_ns if node.leaving else node.heard_ns + self._timing.silent_ns)

    def received(self, event: Received, now_ns: int) -> None:
        self.out.now_ns = now_ns
        frame = event.frame
        if isinstance(frame, frames.Done):
            self.out.answered(event.peer, frame)
        elif isinstance(frame, frames.Seen):
            if frame.what == "node":
                self.nodes.described(event.peer, frame.body)
            elif frame.what in (wire.VITALS, wire.USE):
                self._observed(event.peer, frame)
            elif (link := self.boxes.of_peer.get(event.peer)) is not None and frame.what == wire.ENDS:
                self._ends(link)
            elif link is not None and frame.what == wire.LOOKED:
                self._looked(link, frame)
        elif isinstance(frame, frames.Marks) and (link := self.boxes.of_peer.get(event.peer)) is not None:
            self._marks(link, frame)

    def _observed(self, peer: int, frame: frames.Seen) -> None:
        """An agent saw ranks of its node: it speaks for those alone."""
        node, offset = self.nodes.of_peer.get(peer), self._hub.offset(peer)
        if offset is None or frame.what == wire.USE:
            self.uses.seen(peer, frame.body, 0 if offset is None else offset.offset_ns)
            return
        seen = look_of(frame.body, offset.offset_ns, self.out.now_ns)
        gang = None if seen is None else self.gangs.get((seen.job, seen.attempt))
        if node is None or seen is None or gang is None:
            return
        if (found := gang.observe(node.node.id, seen, self.out.now_ns)) is not None:
            self.out.seen.append(found)

    def _ends(self, link: BoxLink) -> None:
        """The host ends the ranks of a box, as its allocation is over."""
        self.host_word.ends(link, self.maker.ended_by(link))

    def _looked(self, link: BoxLink, seen: frames.Seen) -> None:
        """A box has read the newest checkpoint before an attempt: that may be what its start waits for."""
        gang = self.gangs.get((link.job, attempt_of(seen.body)))
        if gang is not None and link.node == gang.ranks[0].node:
            self.moves.looked(gang, seen.body)
            self.moves.move(gang)

    def advance(self, now_ns: int) -> None:
        """Do what is due by now. Call it after all that the hub had by then was taken in: a box that answered in
        time is not taken for dead."""
        self.out.now_ns = now_ns
        for kind, name, of in self._timers.take(now_ns):
            if kind == "node" and (node := self.nodes.at.get(name)) is not None:
                self._look_at_node(node)
            elif kind == "clock":
                self._look_at_clock(name)
            elif kind == "box" and (box := self.boxes.at.get((name, str(of)))) is not None:
                self._look_at_box(box)
            elif kind == "gang" and (gang := self.gangs.get((name, int(of)))) is not None:
                self._look_at_gang(gang)
            elif kind == "release" and (box := self.boxes.of_peer.get(int(of))) is not None and box.peer:
                self._release(box.peer, int(name))

    @property
    def next_ns(self) -> int | None:
        """When :meth:`advance` has something to do."""
        return self._timers.next_ns

    # -- boxes -----------------------------------------------------------------------------------

    def _met(self, link: BoxLink, peer: Peer) -> None:
        """A hello lists what a box has: resume what the log has of it, and end the rest."""
        held = {one.attempt: one.ranks for one in (peer.hello.box or frames.BoxHeld()).attempts}
        for gang in list(self.of_job.get(link.job, {}).values()):
            self._resume(gang, peer, held.pop(gang.attempt, {}))
        for attempt, ranks in held.items():
            self._end(peer, attempt, [int(rank) for rank, one in ranks.items() if not one.ended])
            self._release(peer, attempt)
        if link.job not in self._open:
            self.out.tell(peer.id, frames.End(self.out.fence))
        report_heard(self.out, link, self.of_job.get(link.job, {}).values())
        for gang in list(self.of_job.get(link.job, {}).values()):
            self.moves.move(gang)

    def _resume(self, gang: GangState, peer: Peer, held: dict[str, frames.RankHeld]) -> None:
        here = {str(rank.rank): rank for rank in gang.on(peer.node)}
        self._end(peer, gang.attempt, [int(r) for r, one in held.items() if r not in here and not one.ended])
        known = {}
        for number, rank in here.items():
            one = held.get(number)
            if one is not None:
                rank.may_run, rank.sent = True, None
                rank.begun = rank.begun or one.marks > 0 or one.ended
                known[number] = rank.known
            elif rank.begun:
                gang.halted = gang.halted or f"rank {rank.rank} is lost"
                self.out.lost(gang, rank, f"the box of node {peer.node} has no record of it any more")
            else:
                rank.may_run, rank.sent = False, None
        if known:
            self.out.tell(peer.id, resume_of(self._kept, gang, peer.node, known))
        if gang.unsettled:
            self._look_at_gang_at(gang, self.out.now_ns + _LOOK_NS)

    def _marks(self, link: BoxLink, frame: frames.Marks) -> None:
        gang = self.gangs.get((link.job, frame.attempt))
        if gang is None or link.peer is None or frame.rank >= len(gang.ranks):
            return
        rank = gang.ranks[frame.rank]
        if rank.node != link.node or rank.ended:
            return
        taken = rank.take(frame.first, timed_marks(rank, frame.marks, self.out.now_ns))
        if taken is None:  # some are missing, so ask for them again
            self.out.tell(link.peer.id, resume_of(self._kept, gang, link.node, {str(rank.rank): rank.known}))
        elif taken[1]:
            self.out.seen.append(RankMarks(*gang.key, rank.rank, *taken))

    def _end(self, peer: Peer, attempt: int, ranks: list[int]) -> None:
        """End ranks that are over for the log, or were never in it."""
        if ranks:
            self.out.tell(
                peer.id, frames.Stop(self.out.ask(peer.id), self.out.fence, attempt, sorted(ranks), 0)
            )

    def _release(self, peer: Peer, attempt: int) -> None:
        """Have a box forget an attempt; again later, while ranks of it have not ended there."""

        def answered(done: frames.Done) -> None:
            if not done.ok and done.why not in ("", wire.FENCED):
                self._timers.set(("release", str(attempt), peer.id), self.out.now_ns + _LOOK_NS)

        self.out.tell(peer.id, frames.Release(self.out.ask(peer.id, answered), self.out.fence, attempt))

    def clock_of(self, peer: Peer) -> ClockOffset | None:
        """Of that connection; None until it is measured."""
        return self._hub.offset(peer.id)

    def fetch(self, link: BoxLink) -> None:
        """Have the agent look after a box that is needed and has no connection."""
        gangs = self.of_job.get(link.job, {}).values()
        if link.peer is None and any(gang.on(link.node) for gang in gangs):
            self.maker.fetch(link)

    def _watch(self, link: BoxLink, due_ns: int) -> None:
        self._timers.set(("box", link.node, link.job), due_ns)

    def _look_at_box(self, link: BoxLink) -> None:
        """Whether a box is silent, and whether its lease is over."""
        link.refresh(self._hub)
        now_ns, risky = self.out.now_ns, self.risky(link)
        silent_ns = link.heard_ns + self._timing.silent_ns
        if link.peer is not None and (now_ns < silent_ns or not risky):
            report_heard(self.out, link, self.of_job.get(link.job, {}).values())
            self._watch(link, max(silent_ns, now_ns + _LOOK_NS))
            return
        self.fetch(link)
        over_ns = link.heard_ns + self._timing.fenced_after_ns
        if now_ns >= over_ns:
            self._fence(link, risky)
        elif now_ns >= silent_ns:
            report_silence(self.out, link, risky)
        if risky or link.peer is not None:
            times = (now_ns + _LOOK_NS, silent_ns, over_ns)
            self._watch(link, min(at for at in times if at > now_ns))

    def risky(self, link: BoxLink) -> list[tuple[GangState, list[RankState]]]:
        """The ranks that may run in a box, by attempt."""
        found = [(gang, gang.risky(link.node)) for gang in self.of_job.get(link.job, {}).values()]
        return [(gang, ranks) for gang, ranks in found if ranks]

    def _fence(self, link: BoxLink, risky: list[tuple[GangState, list[RankState]]]) -> None:
        """The lease of a box is over, so that its ranks are dead: they are lost, and ended again if it comes back."""
        self.lose(link, risky, lost_because(link, self.out.now_ns), f"node {link.node} is lost")
        if risky:
            self.maker.fenced(link)

    def lose(
        self, link: BoxLink, risky: list[tuple[GangState, list[RankState]]], text: str, halted: str
    ) -> None:
        """Ranks of a box are dead."""
        link.silent.clear()
        for gang, ranks in risky:
            gang.halted = gang.halted or halted
            for rank in ranks:
                self.out.lost(gang, rank, text)
            if link.peer is not None:
                self._end(link.peer, gang.attempt, numbers(ranks))
            self.moves.move(gang)

    # -- what is looked at from time to time -----------------------------------------------------

    def _look_at_gang_at(self, gang: GangState, due_ns: int) -> None:
        self._timers.set(("gang", *gang.key), due_ns)

    def _look_at_gang(self, gang: GangState) -> None:
        """Continue with a gang that is being started, unless its time is over."""
        if gang.unsettled:
            self.moves.overdue(gang)
            self.moves.move(gang)
            self._look_at_gang_at(gang, self.out.now_ns + _LOOK_NS)

    def look_at_node_at(self, link: HostNode, due_ns: int) -> None:
        self._timers.set(("node", link.node.id, ""), due_ns)

    def _look_at_node(self, link: HostNode) -> None:
        node = link.node.id
        now_ns, silent_ns = self.out.now_ns, self._timing.silent_ns
        heard = any(box.answers(self._hub, now_ns, silent_ns) for box in self.boxes.on_node(node))
        used = link.leaving and any(gang.on(node) for gang in self.gangs.values())
        again_ns = self.nodes.look(link, self.out.now_ns, self._hub, boxes=heard, used=used)
        if link.gone:
            self.uses.gone(node)
        if again_ns is not None:
            self.look_at_node_at(link, again_ns)

    def _look_at_clock(self, node: str) -> None:
        """Report how well the clock of a node is known, while its agent is connected."""
        agent = self.nodes.agent(node)
        clock = None if agent is None else self._hub.offset(agent.id)
        if agent is not None and clock is not None:
            self.out.seen.append(HostClock(node, agent.boot, clock.offset_ns, clock.error_ns))
            self._timers.set(("clock", node, ""), self.out.now_ns + _CLOCK_NS)

    def _add(self, gang: GangState) -> None:
        self.gangs[gang.key] = gang
        self.of_job.setdefault(gang.job, {})[gang.attempt] = gang
        self._open.add(gang.job)
