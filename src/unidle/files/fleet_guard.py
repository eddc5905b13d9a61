"""The ``guard`` section of a fleet file: the policy for sick nodes and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.files.fleet_between import BetweenPart, between_as_data, between_of
from unidle.files.values import DurationBounds, DurationText, duration_field, duration_text, expand
from unidle.fleet import Node
from unidle.fleet.policies import RUNGS, Breaker, GuardPolicy, Hook, Lemon, Out, Rung
from unidle.fleet.spares import alike_nodes
from unidle.words import are, counted

_TIMES: Final = DurationBounds(10_000_000, 365 * 86_400 * 1_000_000_000, "0.01 s to 365 days", "10m")
_MOST_NODES: Final = 200_000
PLACES: Final = ("node", "device", "address")
_USUAL: Final = GuardPolicy()


Percent = Annotated[float, Meta(ge=0.01, le=100)]
_Words = tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...]


def _words(least: int) -> Meta:
    return Meta(
        min_length=least,
        max_length=256,
        description="Program and arguments, run without a shell. {node}, {device} and {address} are replaced.",
        examples=[["ssh", "{address}", "systemctl", "reboot"]],
    )


class HookPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command of the site. Exit code 0: done, or fit. For checks, 3: undecided. Otherwise: failed, or unfit."""

    command: Annotated[_Words, _words(0)] = ()
    timeout: Annotated[
        DurationText | None, duration_field("Time limit. Default: 10m; for quick, 1m.", example="10m")
    ] = None
    tries: Annotated[
        Annotated[int, Meta(ge=1, le=100)] | None,
        Meta(description="Maximum number of attempts. Default: 2 for remedies, 3 for checks."),
    ] = None
    pause: Annotated[DurationText | None, duration_field("Pause between two attempts.", Hook().pause_ns)] = (
        None
    )


class RungPart(HookPart, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command of the site that repairs a node or device. It must exit with 0 when it is done."""

    command: Annotated[_Words, _words(1)]


class RemedyPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Commands that repair nodes and devices, from the mildest to the strongest. All are optional."""

    reset_gpu: Annotated[
        RungPart | None,
        Meta(description="Command that resets one device. {device} is replaced by its name, such as n1/0."),
    ] = None
    reboot: Annotated[RungPart | None, Meta(description="Command that reboots the node.")] = None
    replace: Annotated[RungPart | None, Meta(description="Command that replaces the node.")] = None


class OutPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on the nodes that unidle takes out of service."""

    nodes: Annotated[
        Annotated[int, Meta(ge=0, le=200_000)] | None,
        Meta(
            description="Maximum number of nodes out of service; 0: no node is removed. Default: see percent."
        ),
    ] = None
    percent: Annotated[
        Percent,
        Meta(
            description="Maximum percentage of the fleet's nodes out of service, at least one node. Ignored if nodes is "
            "given."
        ),
    ] = 10.0
    tier_percent: Annotated[
        Percent,
        Meta(description="Maximum percentage of the nodes under one tier out of service, at least one node."),
    ] = 50.0
    per_hour: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Maximum number of remedies that start within an hour.")
    ] = 20


class BreakerPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Many nodes that fail at the same time are assumed to have a common cause. Above both thresholds, no
    further node is removed.
    """

    nodes: Annotated[int, Meta(ge=2, le=200_000, description="Minimum number of failed nodes.")] = 3
    percent: Annotated[Percent, Meta(description="Minimum percentage of the fleet's nodes that failed.")] = (
        5.0
    )
    within: Annotated[
        DurationText | None, duration_field("Period in which they failed.", _USUAL.breaker.within_ns)
    ] = None


class LemonPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node or device that fails repeatedly is not repaired again, but left to the operator."""

    times: Annotated[int, Meta(ge=2, le=1000, description="Number of failures.")] = 3
    within: Annotated[
        DurationText | None, duration_field("Period of the failures.", _USUAL.lemon.within_ns)
    ] = None


class GuardPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Policy for sick nodes and devices."""

    remedy: Annotated[RemedyPart, Meta(description="Commands that repair nodes and devices.")] = RemedyPart()
    prove: Annotated[
        HookPart, Meta(description="Check after a remedy. Default command: unidle's own check.")
    ] = HookPart()
    quick: Annotated[HookPart, Meta(description="Short check. Default command: unidle's own check.")] = (
        HookPart()
    )
    preflight: Annotated[
        Literal["auto", "off", "quick", "standard"],
        Meta(
            description="Check of nodes before a gang starts. off: none. auto: one attempt of the short check, if the "
            "gang has several ranks or GPUs. quick: the short check. standard: also the standard check for new "
            "and repaired nodes."
        ),
    ] = "quick"
    preflight_age: Annotated[
        DurationText | None,
        duration_field("Time for which the result of a check is valid.", _USUAL.preflight_age_ns),
    ] = None
    between: Annotated[
        BetweenPart | None,
        Meta(
            description="Check of the links between the nodes of a gang, before it starts. Default: none. Results are valid for "
            "preflight_age.",
            examples=[{"gbps": 20}],
        ),
    ] = None
    drain: Annotated[
        DurationText | None,
        duration_field("Time that jobs have to save a checkpoint before they are stopped.", _USUAL.drain_ns),
    ] = None
    drain_hard: Annotated[
        DurationText | None,
        duration_field("As drain, for faults that need a reboot or a replacement.", _USUAL.drain_hard_ns),
    ] = None
    suspect: Annotated[
        DurationText | None, duration_field("Time for which a node stays suspect.", _USUAL.suspect_ns)
    ] = None
    quarantine: Annotated[
        DurationText | None,
        duration_field("Maximum time that a node waits for a remedy. Default: 24h.", example="24h"),
    ] = None
    probation: Annotated[
        DurationText | None,
        duration_field(
            "Time for which a repaired node is monitored before it returns to service.", _USUAL.probation_ns
        ),
    ] = None
    probation_every: Annotated[
        DurationText | None,
        duration_field("Time between two short checks during probation.", _USUAL.probation_every_ns),
    ] = None
    accept_unknown: Annotated[
        bool,
        Meta(
            description="Whether an undecided check after a remedy counts as passed if it found no problem."
        ),
    ] = False
    spares: Annotated[
        Annotated[int, Meta(ge=0, le=200_000)] | tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="Spare nodes for gangs that lost nodes or devices to a fault: a number for each kind and model, "
            "or a list of nodes. Until then, low jobs may use them.",
            examples=[1, ["n7", "n[8-9]"]],
        ),
    ] = 0
    spare_grace: Annotated[
        DurationText | None,
        duration_field("Maximum grace period of a job that uses a spare node.", _USUAL.spare_grace_ns),
    ] = None
    probation_work: Annotated[
        Literal["none", "low"],
        Meta(description="Jobs that may run on a node during probation. none: no jobs. low: low jobs."),
    ] = "none"
    out: Annotated[OutPart, Meta(description="Limits on what may be out of service at once.")] = OutPart()
    breaker: Annotated[BreakerPart, Meta(description="Condition in which no further node is removed.")] = (
        BreakerPart()
    )
    lemon: Annotated[
        LemonPart,
        Meta(description="Condition in which a node is no longer repaired, but left to the operator."),
    ] = LemonPart()


_TIME_FIELDS: Final = (
    "drain", "drain_hard", "suspect", "quarantine", "probation", "probation_every", "preflight_age", "spare_grace",
)  # fmt: skip


def guard_of(document: Document, part: GuardPart | None, nodes: Sequence[Node]) -> GuardPolicy:
    """The policy. Default: no remedy, and a short check before a gang."""
    if part is None:
        return _USUAL
    path: Path = ("guard",)
    remedies: dict[Rung, Hook] = {}
    for rung in RUNGS:
        given: RungPart | None = getattr(part.remedy, rung)
        if given is not None:
            remedies[rung] = _hook(document, given, Hook(), (*path, "remedy", rung))
    times = {
        f"{name}_ns": _duration(document, getattr(part, name), getattr(_USUAL, f"{name}_ns"), (*path, name))
        for name in _TIME_FIELDS
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
        between=between_of(document, part.between),
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
            names = expand(text, len(nodes) or _MOST_NODES)
        except ValueError as problem:
            raise document.error(
                path, str(problem), value=text, remedy="for instance n7, or n[8-9]"
            ) from None
        for name in names:
            if nodes and name not in known:  # without any, hosts with these names may join
                raise document.error(
                    path,
                    "the fleet has no such node with devices",
                    value=name,
                    remedy=f"for instance {nodes[-1].id}",
                )
            found[name] = None
    if nodes and len(found) == len(known):
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
    return usual_ns if text is None else _TIMES.ns(document, path, text)


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
    for name in _TIME_FIELDS:
        ns: int = getattr(policy, f"{name}_ns")
        if ns != getattr(usual, f"{name}_ns"):
            found[name] = duration_text(ns)
    if policy.accept_unknown:
        found["accept_unknown"] = True
    if policy.between is not None:
        found["between"] = between_as_data(policy.between)
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
