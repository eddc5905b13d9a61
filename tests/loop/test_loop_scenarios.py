"""Runs ``tests/scenarios/loop``: what a platform engineer would see, through the whole loop (see the README there)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from loop.drive import Loop
from loop.form import EventPart, Scene, load_scene
from loop.look import Look
from unidle.events import types as ev
from unidle.store.open import open_store

FILES = sorted((Path(__file__).parents[1] / "scenarios" / "loop").glob("*.yaml"))


def loop_of(scene: Scene, tmp_path: Path) -> Loop:
    faults = [
        (scene.ns(e.at_s), e.fail, scene.ns(scene.file.until_s + 1 if e.until_s is None else e.until_s))
        for e in scene.file.events
        if e.fail is not None
    ]
    kept = (
        {"store": open_store(str(tmp_path / f"{scene.name}.db"), create=True)}
        if scene.file.store == "sqlite"
        else {}
    )
    return Loop(scene.fleet, {job.id: job.behaviour for job in scene.jobs}, scene.start_ns, faults, **kept)


def happen(loop: Loop, event: EventPart) -> None:
    if event.cancel is not None:
        loop.controller.cancel(event.cancel, event.by)
    elif event.controller is not None:
        loop.take_up()


def play(scene: Scene, tmp_path: Path) -> Loop:
    """Drive the scenario to its end; fails at the first moment that is not as it says."""
    loop = loop_of(scene, tmp_path)
    look = Look(scene, loop)
    steps = [(job.at_ns, 0, lambda job=job: loop.controller.submit(job.id, job.spec)) for job in scene.jobs]
    steps += [(scene.ns(e.at_s), 1, lambda e=e: happen(loop, e)) for e in scene.file.events]
    steps += [
        (scene.ns(m.at_s), 2, lambda m=m: check(scene, loop, m.at_s, list(look.at(m))))
        for m in scene.file.expected
    ]
    for at_ns, kind, do in sorted(steps, key=lambda step: step[:2]):
        if loop.now_ns < at_ns or kind == 2:
            loop.to(at_ns)
        do()
    loop.to_the_end(scene.ns(scene.file.until_s))
    check(scene, loop, None, list(look.ends()))
    return loop


def check(scene: Scene, loop: Loop, at_s: float | None, wrong: list[str]) -> None:
    if not wrong:
        return
    when = "at the end" if at_s is None else f"at {at_s:g} s"
    told = [(t, e) for t, e in loop.events if not isinstance(e, ev.RankSaw | ev.Predicted)]
    last = [f"  {scene.s(t):10.3f} {type(e).__name__} {_short(e)}" for t, e in told[-40:]]
    pytest.fail("\n".join([f"{scene.name}, {when}:", *wrong, "the log before that:", *last]), pytrace=False)


def _short(event: ev.Event) -> str:
    """What matters of an event, in one line."""
    words = []
    for name in (
        "job",
        "attempt",
        "why",
        "for_job",
        "target",
        "health",
        "outcome",
        "state",
        "devices",
        "ranks",
        "places",
        "because",
    ):
        value = getattr(event, name, None)
        if name == "places" and isinstance(event, ev.AttemptPlaced):
            value = dict(Counter(place.node for place in event.places))
        if value is not None:
            words.append(f"{name}={getattr(value, 'text', value)}")
    return ", ".join(words)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_scenario_goes_as_it_says_each_time(path: Path, tmp_path: Path) -> None:
    scene = load_scene(path)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, again = play(scene, tmp_path / "a"), play(scene, tmp_path / "b")
    assert first.log() == again.log(), "the same input, the same plan"
    first.store.close()
    again.store.close()
