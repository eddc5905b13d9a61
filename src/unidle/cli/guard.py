"""``unidle guard``: what is wrong with nodes, and what to do about it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from unidle.cli import failures, guarded, incidents, nodes, notices
from unidle.cli.common import JsonOption, say, show_table, warn
from unidle.cli.help import Commands
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.guard.log import Finding
    from unidle.guard.policy_table import PolicyName

guard_app = Commands(help="Show the health of nodes, and drain and repair them.")
_BLOCK_BYTES = 1 << 18
_WIDTH = 100


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    guard_app.command("incidents")(incidents.incidents)
    guard_app.command("failures")(failures.failures)
    nodes.register(guard_app)
    guard_app.command("notices")(notices.notices)
    guard_app.command("watch")(guarded.watch)
    app.add_typer(guard_app, name="guard")


@guard_app.command("classify")
def classify(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="Kernel log; default: standard input."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", metavar="NAME", help="Source of the actions: unidle, nvidia, aks, eks or gke."
        ),
    ] = "unidle",
    compare: Annotated[bool, typer.Option("--compare", help="Show the action of every policy.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Classify the lines of a kernel log. For each finding: cause or symptom, the device, and what to do."""
    chosen = _policy(policy)
    try:
        with _opened(file) as stream:
            rows = _findings(stream)
            if as_json:
                _print_json(rows, chosen, compare)
            else:
                _print_table([f for batch in rows for f in batch], chosen, compare)
    except OSError as error:
        if file is None or isinstance(error, BrokenPipeError):
            raise
        raise _unreadable(file, error) from error


def _policy(name: str) -> PolicyName:
    from unidle.guard.policy_table import POLICIES

    for known in POLICIES:
        if name == known:
            return known
    raise BadInput("no such policy", field="--policy", value=name, remedy=f"use one of {', '.join(POLICIES)}")


def _opened(file: str | None) -> BinaryIO:
    if file is None or file == "-":
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    try:
        return open(file, "rb", buffering=0)
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: str, error: OSError) -> BadInput:
    return BadInput(
        f"cannot be read: {error.strerror or error}", field="FILE", value=file,
        remedy="name a file that can be read, or pipe the log in",
    )  # fmt: skip


def _findings(stream: BinaryIO) -> Iterator[list[Finding]]:
    """The findings of each block as it comes, so that a log that is piped in is answered at once."""
    from unidle.guard.log import NEEDLES, Reader, Splitter

    reader, splitter = Reader(), Splitter(needles=NEEDLES)
    while block := stream.read(_BLOCK_BYTES):
        yield [f for line in splitter.feed(block) if (f := reader.consider(line)) is not None]
    yield [f for line in splitter.end() if (f := reader.consider(line)) is not None]


def _print_json(batches: Iterator[list[Finding]], policy: PolicyName, compare: bool) -> None:
    from unidle.guard.policy_table import POLICIES, judge

    for batch in batches:
        lines = []
        for finding in batch:
            own = judge(policy, finding)
            value: dict[str, object] = {**finding.contract(), "action": own.action, "because": own.because}
            if compare:
                value["policies"] = {name: judge(name, finding).action for name in POLICIES}
            lines.append(json.dumps(value, ensure_ascii=False) + "\n")
        if lines:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()


def _print_table(found: list[Finding], policy: PolicyName, compare: bool) -> None:
    from unidle.guard.diagnosis import judge as verdict
    from unidle.guard.policy_table import POLICIES, judge

    if not found:
        warn("no line of this log matches a rule for hardware, driver, network, storage or kernel")
        return
    heads = ["line", "kind", "code", "device", "role"]
    start = [
        [str(f.line), f.kind, "-" if f.code is None else str(f.code), f.device or "-", f.role] for f in found
    ]
    if compare:
        heads += POLICIES
        rows = [
            [*cells, *(judge(p, f).action for p in POLICIES)] for cells, f in zip(start, found, strict=True)
        ]
    else:
        heads += ["action", "because"]
        rows = [
            [*cells, own.action, _short(own.because)]
            for cells, f in zip(start, found, strict=True)
            if (own := judge(policy, f))
        ]
    show_table(heads, rows)
    summary = verdict(found)
    if summary is not None and not compare and policy == "unidle":
        say()
        say(f"deepest fault: {summary.because}")


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
