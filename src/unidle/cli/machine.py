"""``schema`` and ``doctor``: what files look like, and what this machine can do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from unidle.cli.common import JsonOption, LocalStoreOption, data_dir, print_json, say, store_address
from unidle.cli.span import of_span
from unidle.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command("schema")(schema)
    app.command("doctor")(doctor)


def schema(
    file: Annotated[
        str,
        typer.Argument(
            metavar="job|fleet|clusters|drill|model|span|fill|filler",
            show_default=False,
            help="Kind of file.",
        ),
    ],
) -> None:
    """Print the JSON Schema of an input file. Editors use it to check and complete the file."""
    import json

    from unidle.files import schema as schemas

    makers: dict[str, Callable[[], Any]] = {
        "job": schemas.job_schema, "fleet": schemas.fleet_schema, "clusters": schemas.clusters_schema,
        "drill": schemas.drill_schema, "model": schemas.model_schema, "span": lambda: of_span("files.schema").span_schema(),
        "fill": _fill_schema, "filler": _filler_schema,
    }  # fmt: skip
    if file not in makers:
        raise BadInput("has no schema", field="FILE", value=file, remedy=f"use one of {', '.join(makers)}")
    sys.stdout.write(json.dumps(makers[file](), indent=2, ensure_ascii=False) + "\n")


def _fill_schema() -> Any:
    from unidle.cli.fill import of_fill

    return of_fill("files.schema").fill_schema()


def _filler_schema() -> Any:
    from unidle.cli.fill import of_fill

    return of_fill("files.filler_file").filler_schema()


def doctor(store: LocalStoreOption = None, as_json: JsonOption = False) -> None:
    """Show what this machine can do, and what is missing."""
    from unidle.doctor import checks

    address = store_address(store)
    found = checks(data_dir() if "://" in address else address)
    if as_json:
        print_json(
            [{"name": c.name, "state": c.state, "detail": c.detail, "needed_for": c.needed_for, "remedy": c.remedy}
             for c in found]
        )  # fmt: skip
        return
    for check in found:
        say(f"{check.state:<8} {check.name:<20} {check.detail}", hang=30)
        if check.state != "ok":
            say(
                f"{'':<8} {'':<20} needed for {check.needed_for}"
                + (f"; {check.remedy}" if check.remedy else ""),
                hang=30,
            )
