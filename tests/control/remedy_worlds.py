"""A controller on simulated gangs and nodes that fall sick; remedies and checks answer as a script says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from control.idle_worlds import IdleWorld, S
from unidle.clock import VirtualClock
from unidle.control.loop import Controller
from unidle.control.nodes.maintenance import NodeMaintenance
from unidle.control.nodes.remedies import GuardRequest
from unidle.control.services import ControllerServices, ControllerTiming
from unidle.engine.node_commands import NodeCheck, NodeCommand, NodeOutcome
from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.ledger.columns import rows as part_rows
from unidle.ledger.current import check_batches
from unidle.ledger.export import standing_rows
from unidle.place.policy import Unidle
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source


class ScriptedCommands:
    """Outlives controllers, as real processes do. ``script``: what -> answers in turn (the last one stays), each with
    ``code`` and ``after_s``, or ``never``, or ``away``."""

    elsewhere = False

    def __init__(self, clock: VirtualClock, script: dict[str, list[dict[str, Any]]]) -> None:
        self._clock, self._script = clock, script
        self.begun: Counter[str] = Counter()
        self._ends: dict[str, tuple[int, NodeOutcome]] = {}

    def away(self, _node: str) -> str:
        return ""

    def begin(self, order: NodeCommand) -> None:
        if order.name in self._ends:
            return
        words = (order.what.tier,) if isinstance(order.what, NodeCheck) else order.what
        what = next((w for w in words if w in ("reset_gpu", "reboot", "replace", "prove", "quick")), "prove")
        answers = self._script.get(what, [{}])
        answer = answers[min(self.begun[what], len(answers) - 1)]
        self.begun[what] += 1
        now_ns, after_ns = self._clock.now_ns(), int(answer.get("after_s", 1) * S)
        if answer.get("never") or answer.get("away"):
            away = bool(answer.get("away"))
            text = f"host {order.node} did not answer" if away else ""
            self._ends[order.name] = (now_ns + order.limit_ns, NodeOutcome(None, not away, text, away=away))
        else:
            self._ends[order.name] = (
                now_ns + after_ns,
                NodeOutcome(answer.get("code", 0), False, answer.get("text", "")),
            )

    def look(self, name: str) -> NodeOutcome | None:
        end = self._ends.get(name)
        return end[1] if end is not None and end[0] <= self._clock.now_ns() else None

    def forget(self, name: str) -> None:
        """The next controller may look for it."""


class RemedyWorld(IdleWorld):
    """``fleet`` and ``jobs`` as in :class:`IdleWorld`; ``commands``: the script."""

    def __init__(
        self,
        fleet: dict[str, Any],
        jobs: dict[str, dict[str, Any]],
        commands: dict[str, list[dict[str, Any]]],
    ) -> None:
        self._script = commands
        self.commands: ScriptedCommands | None = None
        super().__init__(fleet, jobs)

    def take_up(self) -> None:
        if self.commands is None:
            self.commands = ScriptedCommands(self.clock, self._script)
        commands = self.commands
        self.lease = self.store.acquire("test")
        self.controller = Controller(
            self.store, self.lease, self.engine, Unidle(), self.clock,
            ControllerServices(NodeMaintenance(lambda: commands, str(self.store.last()[0]))), ControllerTiming(inbox_every_ns=None),
        )  # fmt: skip
        self.controller.start("test")

    def fault(self, target: str, action: str) -> None:
        """As a detector tells of it: through the log."""
        node = target.partition("/")[0]
        now_ns = self.clock.now_ns()
        device = target if "/" in target else ""
        said = ev.FaultSeen(node, "x", action, now_ns, now_ns, Reason("x", f"{target} broke"), device)
        self.controller._emit(said)

    def ask(self, verb: str, target: str, **more: Any) -> None:
        times = {
            f"{name}_ns": 1 + int(more.pop(f"{name}_s") * S)
            for name in ("from", "until", "deadline")
            if f"{name}_s" in more
        }
        request = GuardRequest(verb, target, "ann", **times, **more)
        body = msgspec.json.encode(request)
        for event in self.controller._services.nodes.asked(self.controller.view, body, self.clock.now_ns()):
            self.controller._emit(event)
        self.controller._state.place = True

    def device_s(self, device: str) -> dict[str, float]:
        """Seconds of one device by leaf; the whole ledger has to add up."""
        source = ledger_source(self.store, load_view(self.store))
        assert check_batches(source.batches(source.extent())) == []
        totals: dict[str, float] = {}
        for part in standing_rows(source):
            for row in part_rows(part):
                if row.device == device:
                    totals[row.leaf] = totals.get(row.leaf, 0) + (row.end_ns - row.start_ns) / S
        return {leaf: round(spent, 3) for leaf, spent in totals.items()}
