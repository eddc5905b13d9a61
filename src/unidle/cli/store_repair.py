"""``unidle store repair`` and ``store export --salvage``: what is whole in a damaged store."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from unidle.cli.common import JsonOption, LocalStoreOption, print_json, say, say_whole, store_address, warn
from unidle.errors import BadInput, StoreHeld
from unidle.words import counted, does

if TYPE_CHECKING:
    from unidle.store.salvage import Salvage
    from unidle.view.repair import Plan


def repair(
    store: LocalStoreOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="PATH_OR_URL", show_default=False,
            help="Write the repaired store there, and leave the damaged one as it is. Needed for PostgreSQL.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be lost, and write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Save all that is whole in a damaged store, and report what is lost. The damaged file stays, as STORE.damaged.

    No other process may have the store open. Time that the lost events covered is `unseen` in the ledger. Exit code
    4 if the store is in use, or if nothing in it can be read.
    """
    address = store_address(store)
    with ExitStack() as stack:
        found = _found(address, stack, writes=to is None and not dry_run)
        plan = _planned(found, address)
        kept = target = None
        if not dry_run:
            target, kept = _written(address, to, found, plan)
    _report(found, plan, target, kept, as_json=as_json)


def salvage(address: str, stream: BinaryIO) -> None:
    """Export what is whole; placeholders are in the place of the rest. What is lost is reported on standard error."""
    from unidle.store import tools

    with ExitStack() as stack:
        found = _found(address, stack, writes=False)
        plan = _planned(found, address)
        tools.write_export(stream, found.requests, plan.events(found), found.archives)
    for line in _lines(found, plan):
        warn(line)


def _found(address: str, stack: ExitStack, *, writes: bool) -> Salvage:
    from unidle.store import file_swap, lease_owner, salvage
    from unidle.store.open import open_store

    path = file_swap.file_of(address)
    if path is not None:
        if not path.exists():
            raise BadInput("there is no store", field="--store", value=address, remedy="check the path")
        stack.enter_context(file_swap.alone(path.resolve()))
        return salvage.of_file(path.resolve())
    if writes:
        raise BadInput(
            "a store in a database is repaired into another one", field="--to",
            remedy="name a file or an empty database",
        )  # fmt: skip
    opened = open_store(address, create=False, read_only=True)
    stack.callback(opened.close)
    found = salvage.of_rows(opened)
    if found.holder is not None:
        held = lease_owner.parse(found.holder)
        raise StoreHeld(
            f"is held by {held.words() if held else found.holder}", field=opened.url, remedy="stop it first"
        )
    return found


def _planned(found: Salvage, address: str) -> Plan:
    from unidle.control.store_files import unlogged
    from unidle.store import file_swap
    from unidle.view.repair import plan

    made = plan(found)
    if (path := file_swap.file_of(address)) is not None:
        found.notes += unlogged(Path(f"{path}.d/runs"), made.view)
    return made


def _written(address: str, to: str | None, found: Salvage, plan: Plan) -> tuple[str, str | None]:
    """Where the repaired store is, and where the damaged one."""
    from unidle.store import file_swap
    from unidle.store.open import open_store
    from unidle.store.tools import fill

    path = file_swap.file_of(address)
    if to is not None or path is None:
        target = open_store(str(to), create=True)
        try:
            fill(target, found, plan.events(found))
        finally:
            target.close()
        return str(to), None
    path = path.resolve()
    draft = path.with_name(f"{path.name}.repairing-{os.getpid()}")
    try:
        new = open_store(str(draft), create=True, mode=path.stat().st_mode & 0o666)  # who may use it stays
        try:
            fill(new, found, plan.events(found))
        finally:
            new.close()
        return str(path), str(file_swap.put_in_place(draft, path))
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def _lines(found: Salvage, plan: Plan) -> list[str]:
    lines = [hole.line() for hole in plan.holes]
    lines += found.notes
    if plan.misfits:
        lines.append(
            f"{counted(plan.misfits, 'whole event')} {does(plan.misfits, 'refer')} to what is lost; without effect"
        )
    return lines


def _report(found: Salvage, plan: Plan, target: str | None, kept: str | None, *, as_json: bool) -> None:
    if as_json:
        holes = [{**asdict(hole), "known": {str(k): v for k, v in hole.known.items()}} for hole in plan.holes]
        print_json(
            {
                "events": len(found.seqs), "requests": len(found.requests), "holes": holes,
                "archives": len(found.archives), "misfits": plan.misfits, "notes": found.notes, "store": target, "damaged": kept,
            }
        )  # fmt: skip
        return
    for line in _lines(found, plan):
        say(line)
    saved = (
        f"{counted(len(found.seqs), 'event')} of {plan.last_seq}, {counted(len(found.requests), 'request')}"
        + (f", {counted(len(found.archives), 'archive')}" if found.archives else "")
    )
    if target is None:
        say(f"{saved} can be saved; nothing was written")
        return
    say_whole(f"{saved} saved in {target}" + (f"; the damaged file is {kept}" if kept else ""))
