"""Why a job is where it is, in lines for people: what ``unidle explain`` and ``Job.explain()`` print. Pure."""

from __future__ import annotations

from typing import Any

from unidle.control.queries.describe import clock_text
from unidle.guard.failure_words import failure_lines
from unidle.jobs import NEVER
from unidle.words import clock_time, counted, figures, length


def headline(job: dict[str, Any]) -> str:
    """The job, its state, and why it is in that."""
    return f"{job['job']}  {job['state']}" + (f": {job['reason']}" if job["reason"] else "")


def story_lines(story: dict[str, Any]) -> list[str]:
    """The story of :func:`unidle.control.queries.describe.explain`: what it waits for, each decision, each prediction, its failure."""
    lines = [headline(story), *_waiting(story)]
    if story["silent"]:
        ranks = ", ".join(map(str, story["silent_ranks"]))
        lines.append(
            f"  now: {story['silent']}: rank {ranks} does not answer, and is not known to have ended"
        )
    if story["filler"]:
        lines.append(f"  {story['filler']}")
    if story["unmeasured"]:
        lines.append(f"  {story['unmeasured']}")
    if story["unwatched"]:
        lines.append(f"  {story['unwatched']}")
    if clocks := clock_text(story["clock_errors_ns"]):
        lines.append(f"  {clocks}")
    moments = [(decision["time_ns"], decision["what"], decision["text"]) for decision in story["decisions"]]
    moments += [(said["said_ns"], "predicted", predicted(said)) for said in story["predictions"]]
    before = ""
    for time_ns, what, text in sorted(moments, key=lambda moment: moment[0]):
        lines.append(f"  {clock_time(time_ns)}  {what:<18} {_without(text, before)}".rstrip())
        before = text if what == "stop" or what.startswith("attempt ") else before
    return [*lines, "", *failure_lines(story["failure"])] if story["failure"] is not None else lines


def _without(text: str, before: str) -> str:
    """A decision after a stop or a failed attempt, without the reason of that: the line above has it."""
    if not before:
        return text
    if text == before:
        return ""
    if text.endswith(f": {before}"):
        return text.removesuffix(f": {before}")
    return text.removeprefix(f"{before}; ")


def _waiting(story: dict[str, Any]) -> list[str]:
    waiting = story.get("waiting")
    if not waiting:
        return []
    expected_ns = waiting["expected_start_ns"]
    start = f"; expected to start at {clock_time(expected_ns)}" if expected_ns else ""
    if waiting["start_unknown"]:
        start = f"; start unknown: {waiting['start_unknown']}"
    now = waiting["now"]["text"]
    now = "the same" if now == story["reason"] else now
    ahead = f"; {counted(waiting['ahead'], 'job')} ahead in the queue{start}"
    lines = [f"  now: {now}" + ("" if waiting["now"]["code"] in NEVER else ahead)]
    if waiting["stops"]:
        lines.append(f"  would be stopped for it: {', '.join(waiting['stops_whose'])}")
    return lines + [f"  what would help: {barrier['unblock']}" for barrier in waiting["in_the_way"]]


def predicted(said: dict[str, Any]) -> str:
    """One prediction in words, with its error once the truth is known."""
    if said["what"] == "cost":
        return _predicted_cost(said)
    shown = {"start": clock_time}.get(said["what"], length)
    text = f"{said['what'].replace('_', ' ')} {shown(said['value_ns'])}"
    text += _range(shown(said["low_ns"]), shown(said["high_ns"]), said["level"])
    text += f", from {said['by']}"
    if said["error_ns"] == 0:
        text += "; it was so"
    elif said["error_ns"] is not None:
        late = "later" if said["what"] == "start" else "longer"
        early = "earlier" if said["what"] == "start" else "shorter"
        text += f"; it was {length(abs(said['error_ns']))} {late if said['error_ns'] > 0 else early}"
    return text


def _predicted_cost(said: dict[str, Any]) -> str:
    cost = said["cost"]
    value, low, high = (_money(cost[what]) for what in ("value", "low", "high"))
    text = f"cost {value} {cost['currency']}{_range(low, high, said['level'])}"
    text += f", from {said['by']}"
    if cost["error"] == 0:
        text += "; it was so"
    elif cost["error"] is not None:
        text += f"; it was {_money(abs(cost['error']))} {'more' if cost['error'] > 0 else 'less'}"
    return text


def _range(low: str, high: str, level: float) -> str:
    """The bounds as text; empty if they are equal, as from a single earlier run."""
    if low == high:
        return ""
    return f" ({low} to {high}" + (f" with {100 * level:.0f} %)" if level else ")")


def _money(amount: float) -> str:
    """To the cent; of less than that two figures."""
    return f"{amount:.2f}" if amount >= 0.01 or not amount else figures(float(f"{amount:.2g}"))
