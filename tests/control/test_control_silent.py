"""A holder that does not answer may be at work: it gets no notice before it answers again."""

from __future__ import annotations

from control.idle_worlds import IdleWorld
from unidle.engine.protocol import Silent

S = 1_000_000_000
FLEET = {
    "nodes": [{"id": "n1", "devices": {"count": 1, "kind": "gpu"}}],
    "idle": {"after": "10m", "start": "20m", "notice": "5m", "release": True},
}


def told(world: IdleWorld) -> bool:
    live = world.job("j").live
    return live is not None and live.notice is not None


def test_a_silent_holder_gets_no_notice_before_it_answers_again() -> None:
    world = IdleWorld(FLEET, {"j": {"does": {"work_s": 9000, "quiet_at_s": 0, "quiet_s": 100000}}})
    world.submit("j")
    world.engine.befalls(1 + 1000 * S, Silent("j", 1, (0,), 1 + 992 * S))
    world.engine.befalls(1 + 3000 * S, Silent("j", 1, (0,), 0))
    world.until(2999)
    assert not told(world)
    world.until(3001)
    assert told(world)
    assert world.ledger_s("j")["idle"] > 0
