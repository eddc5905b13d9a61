"""What a fleet file says about sick nodes and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.files.ranges import expand
from unidle.files.values import DURATION_SAYS, DurationText, duration_ns, duration_text
from unidle.fleet import Node
from unidle.fleet.guard import Breaker, GuardPolicy, Hook, Lemon, Out, Rung
from unidle.fleet.spares import alike_nodes
from unidle.words import are, counted

_SHORTEST_NS: Final = 10_000_000
_LONGEST_NS: Final = 365 * 86_400 * 1_000_000_000
PLACES: Final = ("node", "device", "address")
_USUAL: Final = GuardPolicy()


def _time(text: str, example: str) -> Meta:
    return Meta(
        description=text,
        examples=[example],
        extra={"says": DURATION_SAYS, "remedy": f"for instance {example}"},
    )


Percent = Annotated[float, Meta(ge=0.01, le=100)]
_Words = tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...]


def _words(least: int) -> Meta:
    return Meta(
        min_length=least,
        max_length=256,
        description="The program and its words, without a shell; {node}, {device} and {address} are filled in.",
        examples=[["ssh", "{address}", "systemctl", "reboot"]],
    )


class HookPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command of the site. Exit code 0: done, or fit; for checks 3: could not tell; else it failed, or is unfit."""

    command: Annotated[_Words, _words(0)] = ()
    timeout: Annotated[DurationText | None, _time("Time limit; 10m (quick: 1m).", "10m")] = None
    tries: Annotated[
        Annotated[int, Meta(ge=1, le=100)] | None,
        Meta(description="Number of attempts; remedies 2, checks 3."),
    ] = None
    pause: Annotated[DurationText | None, _time("Pause between two attempts; 10s.", "10s")] = None


class RungPart(HookPart, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A remedy: a command of the site that is done when it exits with 0."""

    command: Annotated[_Words, _words(1)]


class RemedyPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rungs of the ladder that the site has, from below."""

    reset_gpu: Annotated[
        RungPart | None, Meta(description="Command that resets one device; {device} is filled in.")
    ] = None
    reboot: Annotated[RungPart | None, Meta(description="Reboots the node.")] = None
    replace: Annotated[RungPart | None, Meta(description="Command that has the node replaced.")] = None


class OutPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much may be out of use at once by unidle's own decision."""

    nodes: Annotated[
        Annotated[int, Meta(ge=0, le=200_000)] | None, Meta(description="So many nodes; 0: none is removed.")
    ] = None
    percent: Annotated[
        Percent, Meta(description="Of the fleet's nodes, one at least; where nodes is not given.")
    ] = 10.0
    tier_percent: Annotated[Percent, Meta(description="Of the nodes under one tier, one at least.")] = 50.0
    per_hour: Annotated[int, Meta(ge=1, le=1_000_000, description="Remedies begun within an hour.")] = 20


class BreakerPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """So many nodes that fall at once have a common cause: then none is removed."""

    nodes: Annotated[int, Meta(ge=2, le=200_000, description="At least so many.")] = 3
    percent: Annotated[Percent, Meta(description="And at least this share of the fleet.")] = 5.0
    within: Annotated[DurationText | None, _time("Within this time; 10m.", "10m")] = None


class LemonPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What falls again and again needs a human."""

    times: Annotated[int, Meta(ge=2, le=1000, description="So many times.")] = 3
    within: Annotated[DurationText | None, _time("Within this time; 30d.", "30d")] = None


class GuardPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is done about sick nodes and devices."""

    remedy: Annotated[RemedyPart, Meta(description="The ladder of remedies.")] = RemedyPart()
    prove: Annotated[
        HookPart, Meta(description="The check after a remedy; without a command, unidle's own.")
    ] = HookPart()
    quick: Annotated[HookPart, Meta(description="The short check; without a command, unidle's own.")] = (
        HookPart()
    )
    preflight: Annotated[
        Literal["auto", "off", "quick", "standard"],
        Meta(
            description="Check nodes before a gang starts; auto: where it has several ranks or GPUs, by one short look;"
            " standard: new and repaired ones thoroughly."
        ),
    ] = "quick"
    preflight_age: Annotated[DurationText | None, _time("How long a check counts; 10m.", "10m")] = None
    drain: Annotated[DurationText | None, _time("How long jobs have to save a checkpoint; 5m.", "5m")] = None
    drain_hard: Annotated[
        DurationText | None, _time("The same where only a reboot or more helps; 30s.", "30s")
    ] = None
    suspect: Annotated[DurationText | None, _time("How long a node stays suspect; 1h.", "1h")] = None
    quarantine: Annotated[DurationText | None, _time("Longest wait for a remedy; 24h.", "24h")] = None
    probation: Annotated[
        DurationText | None, _time("How long a repaired node is idle and watched; 10m.", "10m")
    ] = None
    probation_every: Annotated[DurationText | None, _time("Between two short checks then; 1m.", "1m")] = None
    accept_unknown: Annotated[
        bool,
        Meta(description="An undecided check after a remedy that found no problem counts as passed."),
    ] = False
    spares: Annotated[
        Annotated[int, Meta(ge=0, le=200_000)] | tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="Spare nodes for gangs that lost nodes or devices to a fault: a number for each kind and model,"
            " or a list. Jobs of level low may use them meanwhile.",
            examples=[1, ["n7", "n[8-9]"]],
        ),
    ] = 0
    spare_grace: Annotated[
        DurationText | None, _time("The longest grace of a job that fills a spare; 2s.", "2s")
    ] = None
    probation_work: Annotated[
        Literal["none", "low"],
        Meta(description="Who may use a repaired node while it is watched; low: jobs of that level."),
    ] = "none"
    out: Annotated[OutPart, Meta(description="How much may be out at once.")] = OutPart()
    breaker: Annotated[BreakerPart, Meta(description="When nothing is removed any more.")] = BreakerPart()
    lemon: Annotated[LemonPart, Meta(description="When repairs do not help.")] = LemonPart()


_TIMES: Final = (
    "drain", "drain_hard", "suspect", "quarantine", "probation", "probation_every", "preflight_age", "spare_grace",
)  # fmt: skip


def guard_of(document: Document, part: GuardPart | None, nodes: Sequence[Node]) -> GuardPolicy:
    """The policy; without the section there is no remedy, and a short check before a gang."""
    if part is None:
        return _USUAL
    path: Path = ("guard",)
    rungs: tuple[tuple[Rung, RungPart | None], ...] = (
        ("reset_gpu", part.remedy.reset_gpu), ("reboot", part.remedy.reboot), ("replace", part.remedy.replace),
    )  # fmt: skip
    remedies: dict[Rung, Hook] = {}
    for rung, given in rungs:
        if given is not None:
            remedies[rung] = _hook(document, given, Hook(), (*path, "remedy", rung))
    times = {
        f"{name}_ns": _duration(document, getattr(part, name), getattr(_USUAL, f"{name}_ns"), (*path, name))
        for name in _TIMES
    }
    return GuardPolicy(
        remedies=remedies,
        prove=_hook(document, part.prove, _USUAL.prove, (*path, "prove")),
        quick=_hook(document, part.quick, _USUAL.quick, (*path, "quick")),
        out=Out(part.out.nodes, round(part.out.percent * 10_000), round(part.out.tier_percent * 10_000), part.out.per_hour),
        breaker=Breaker(
            part.breaker.nodes, round(part.breaker.percent * 10_000),
            _duration(document, part.breaker.within, Breaker().within_ns, (*path, "breaker", "within")),
        ),
        lemon=Lemon(part.lemon.times, _duration(document, part.lemon.within, Lemon().within_ns, (*path, "lemon", "within"))),
        preflight=part.preflight,
        accept_unknown=part.accept_unknown,
        spares=_spare_count(document, part, nodes),
        spare_nodes=_spare_nodes(document, part, nodes),
        probation_work=part.probation_work,
        **times,
    )  # fmt: skip


def _spare_count(document: Document, part: GuardPart, nodes: Sequence[Node]) -> int:
    if not isinstance(part.spares, int):
        return 0
    for kind, alike in alike_nodes(nodes).items() if part.spares else ():
        if part.spares >= len(alike):
            raise document.error(
                ("guard", "spares"),
                f"would leave no node with {kind} for other jobs: there {are(len(alike))} {counted(len(alike), 'node')}"
                " of that kind",
                value=part.spares,
                remedy=f"keep at most {len(alike) - 1} of each kind, or name the nodes: spares: [{nodes[-1].id}]",
            )
    return part.spares


def _spare_nodes(document: Document, part: GuardPart, nodes: Sequence[Node]) -> tuple[str, ...]:
    if isinstance(part.spares, int):
        return ()
    known = {node.id for node in nodes if node.devices}
    found: dict[str, None] = {}
    for k, text in enumerate(part.spares):
        path: Path = ("guard", "spares", k)
        try:
            names = expand(text, len(nodes))
        except ValueError as problem:
            raise document.error(
                path, str(problem), value=text, remedy="for instance n7, or n[8-9]"
            ) from None
        for name in names:
            if name not in known:
                raise document.error(
                    path,
                    "the fleet has no such node with devices",
                    value=name,
                    remedy=f"for instance {nodes[-1].id}",
                )
            found[name] = None
    if len(found) == len(known):
        raise document.error(
            ("guard", "spares"), "would leave no node for other jobs", value=list(part.spares),
            remedy="name fewer nodes",
        )  # fmt: skip
    return tuple(found)


def _hook(document: Document, part: HookPart, usual: Hook, path: Path) -> Hook:
    for k, word in enumerate(part.command):
        left = word
        for name in PLACES:
            left = left.replace("{" + name + "}", "")
        if "{" in left and "}" in left.partition("{")[2]:
            raise document.error(
                (*path, "command", k), "has an unknown placeholder", value=word,
                remedy="{node}, {device} and {address} are filled in",
            )  # fmt: skip
        if "\0" in word:
            raise document.error((*path, "command", k), "has a zero byte", value=word, remedy="leave it out")
    return Hook(
        part.command,
        _duration(document, part.timeout, usual.timeout_ns, (*path, "timeout")),
        usual.tries if part.tries is None else part.tries,
        _duration(document, part.pause, usual.pause_ns, (*path, "pause")),
    )


def _duration(document: Document, text: str | None, usual_ns: int, path: Path) -> int:
    if text is None:
        return usual_ns
    ns = duration_ns(text)
    if not _SHORTEST_NS <= ns <= _LONGEST_NS:
        raise document.error(path, "must be from 0.01 s to 365 days", value=text, remedy="for instance 10m")
    return ns


def guard_as_data(policy: GuardPolicy) -> dict[str, object] | None:
    """The section that declares ``policy``; None where there is nothing to declare."""
    if policy == _USUAL:
        return None
    usual = _USUAL
    found: dict[str, object] = {"preflight": policy.preflight}
    if policy.remedies:
        found["remedy"] = {rung: _hook_as_data(hook, Hook()) for rung, hook in policy.remedies.items()}
    for name, hook, base in (("prove", policy.prove, usual.prove), ("quick", policy.quick, usual.quick)):
        if hook != base:
            found[name] = _hook_as_data(hook, base)
    for name in _TIMES:
        ns: int = getattr(policy, f"{name}_ns")
        if ns != getattr(usual, f"{name}_ns"):
            found[name] = duration_text(ns)
    if policy.accept_unknown:
        found["accept_unknown"] = True
    found |= _kept_back_as_data(policy)
    out, breaker, lemon = policy.out, policy.breaker, policy.lemon
    if out != usual.out:
        given = {"nodes": out.most} if out.most is not None else {}
        found["out"] = {
            **given,
            "percent": out.ppm / 1e4,
            "tier_percent": out.tier_ppm / 1e4,
            "per_hour": out.per_hour,
        }
    if breaker != usual.breaker:
        within = duration_text(breaker.within_ns)
        found["breaker"] = {"nodes": breaker.nodes, "percent": breaker.ppm / 1e4, "within": within}
    if lemon != usual.lemon:
        found["lemon"] = {"times": lemon.times, "within": duration_text(lemon.within_ns)}
    return found


def _kept_back_as_data(policy: GuardPolicy) -> dict[str, object]:
    found: dict[str, object] = {}
    if policy.keeps_spares:
        found["spares"] = policy.spares or list(policy.spare_nodes)
    if policy.probation_work != _USUAL.probation_work:
        found["probation_work"] = policy.probation_work
    return found


def _hook_as_data(hook: Hook, usual: Hook) -> dict[str, object]:
    found: dict[str, object] = {}
    if hook.command:
        found["command"] = list(hook.command)
    if hook.timeout_ns != usual.timeout_ns:
        found["timeout"] = duration_text(hook.timeout_ns)
    if hook.tries != usual.tries:
        found["tries"] = hook.tries
    if hook.pause_ns != usual.pause_ns:
        found["pause"] = duration_text(hook.pause_ns)
    return found
