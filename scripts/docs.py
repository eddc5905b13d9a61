"""The reference pages that the code itself is the source of; mkdocs calls this while it builds.

Nothing generated is committed, so no page can fall behind. A module that cannot be imported fails
the build.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOMS = Path(__file__).resolve().parent.parent / "src" / "unidle"
TUNE_PAGES = ROOMS / "tune" / "pages"
Schema = Mapping[str, Any]
Command = Any  # click's classes; which copy of click they are from is typer's own affair
Parameter = Any
Context = Any


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The hook of mkdocs: adds the generated pages to those of ``docs/``."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for file in sorted(TUNE_PAGES.glob("UDL*.md")):
        text = file.read_text(encoding="utf-8")
        files.append(File.generated(config, f"tune/{file.name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The hook of mkdocs: the page of a room ends with its files."""
    folder, _, name = page.file.src_uri.partition("/")
    room = ROOMS / name.removesuffix(".md")
    if folder != "rooms" or not room.is_dir():
        return markdown
    rows = "\n".join(f"| `{file}` | {_cell(purpose)} |" for file, purpose in room_files(room))
    return f"{markdown}\n## Files\n\n| file | what it is for |\n|---|---|\n{rows}\n"


def room_files(room: Path) -> Iterator[tuple[str, str]]:
    """Each file of a room, with the first line of its docstring."""
    for path in sorted(room.rglob("*.py")):
        first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        if first and path.name != "__init__.py":
            yield path.relative_to(room).as_posix(), re.sub(r":\w+:|``?", "", first)


def job_page() -> str:
    from unidle.files.schema import job_schema

    return schema_page(
        "Job file",
        "    unidle run job.yaml\n"
        "    unidle schema job > job.schema.json    # for completion in your editor\n\n"
        "A job file is YAML (or JSON). Only `command` is required. This page is made from the schema:",
        job_schema(),
    )


def fleet_page() -> str:
    from unidle.files.schema import fleet_schema

    return schema_page(
        "Fleet file",
        "    unidle up --fleet fleet.yaml\n"
        "    unidle schema fleet > fleet.schema.json    # for completion in your editor\n\n"
        "A fleet file declares nodes, devices and the network between them; [Declare a fleet](../how-to/fleet-file.md)\n"
        "explains it. This page is made from the schema:",
        fleet_schema(),
    )


def clusters_page() -> str:
    from unidle.files.schema import clusters_schema

    return schema_page(
        "Clusters file",
        "    unidle clusters clusters.yaml\n\n"
        "A clusters file lists the clusters of `unidle clusters` and `unidle submit --clusters`;\n"
        "[Send jobs to several clusters](../how-to/clusters.md) explains it. This page is made from the schema, which\n"
        "`unidle schema clusters` prints:",
        clusters_schema(),
    )


def drill_page() -> str:
    from unidle.files.schema import drill_schema

    return schema_page(
        "Drill file",
        "    unidle drill drill.yaml\n\n"
        "A drill file names a job and the faults that `unidle drill` puts into it;\n"
        "[Put faults into a job on purpose](../how-to/drill.md) explains it. This page is made from the schema, which\n"
        "`unidle schema drill` prints:",
        drill_schema(),
    )


def model_page() -> str:
    from unidle.files.schema import model_schema

    return schema_page(
        "Model file",
        "    unidle tune fit model.yaml\n\n"
        "A model file has the shape of a decoder. `unidle tune fit` also reads the `config.json` of Hugging Face;\n"
        "[Find slow code](../how-to/tune.md) explains it. This page is made from the schema, which `unidle schema model` prints:",
        model_schema(),
    )


def span_page() -> str:
    from unidle.span.files.schema import span_schema

    return schema_page(
        "Span file",
        "    unidle span simulate span.yaml\n\n"
        "A span file names a model, the sites that train it, and the links between them;\n"
        "[Train across data centres](../how-to/span.md) explains it. This page is made from the schema, which\n"
        "`unidle schema span` prints:",
        span_schema(),
    )


def fill_page() -> str:
    from unidle.fill.files.schema import fill_schema

    return schema_page(
        "Fill file",
        "    unidle fill simulate fill.yaml\n\n"
        "A fill file is a [span file](span-file.md) with prompts and a model for inference;\n"
        "[Fill the bubbles of training](../how-to/fill.md) explains it. This page is made from the schema, which\n"
        "`unidle schema fill` prints:",
        fill_schema(),
    )


def filler_page() -> str:
    from unidle.fill.files.filler_file import filler_schema

    return schema_page(
        "Filler file",
        "    unidle fill run filler.yaml --job JOB\n\n"
        "A filler file names work that runs while ranks of training wait;\n"
        "[Run fillers next to training](../how-to/fill-run.md) explains it. This page is made from the schema, which\n"
        "`unidle schema filler` prints:",
        filler_schema(),
    )


def cli_page() -> str:
    import typer.main

    from unidle.cli.commands import app

    command = typer.main.get_command(app())
    lines = ["# Command line", "", *_command(command, ["unidle"]), *_exit_codes()]
    return "\n".join(lines) + "\n"


def ledger_page() -> str:
    from unidle.ledger.ratios import RATIOS
    from unidle.ledger.taxonomy import GROUP_COLOURS, GROUPS, PRECEDENCE, TAXONOMY_VERSION

    lines = [
        "# Ledger",
        "",
        "    unidle ledger --by leaf",
        "",
        "Every nanosecond of each device slice, from its first to its last observation, has exactly one leaf. So the",
        f"leaves of any window sum to its capacity exactly. This is taxonomy version {TAXONOMY_VERSION}.",
        "If several causes hold at once, the first of these groups wins: "
        + ", ".join(f"`{group}`" for group in PRECEDENCE)
        + ".",
    ]
    for group, leaves in GROUPS.items():
        swatch = f'<span style="color: {GROUP_COLOURS[group]}">&#9632;</span>'
        lines += [
            "",
            f'## {group} {swatch} {{ #{group} data-toc-label="{group}" }}',
            "",
            "| leaf | meaning |",
            "|---|---|",
        ]
        lines += [f"| `{leaf}` | {_cell(text)} |" for leaf, text in leaves.items()]
    lines += [
        "",
        "## Ratios",
        "",
        "Each ratio is a sum of leaves over a sum of leaves; it is null if the denominator is 0.",
        "",
    ]
    lines += ["| ratio | meaning | definition |", "|---|---|---|"]
    lines += [f"| `{r.name}` | {_cell(r.text)} | {_cell(r.formula)} |" for r in RATIOS.values()]
    return "\n".join(lines) + "\n"


def tune_page() -> str:
    from unidle.tune.registry import rules

    lines = [
        "# Rules of slow code", "", "    unidle tune check train.py", "",
        "[Find slow code](../how-to/tune.md) explains the command. Each rule has a page. *Fixable* means that a deterministic edit exists.", "",
        "| code | name | message | fixable |", "|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| [{one.code}]({one.code}.md) | {one.name} | {_cell(one.message)} | {'yes' if one.fixable else ''} |"
        for one in rules().values()
    ]
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/job-file.md": job_page,
    "reference/fleet-file.md": fleet_page,
    "reference/clusters-file.md": clusters_page,
    "reference/drill-file.md": drill_page,
    "reference/model-file.md": model_page,
    "reference/span-file.md": span_page,
    "reference/fill-file.md": fill_page,
    "reference/filler-file.md": filler_page,
    "reference/cli.md": cli_page,
    "reference/ledger.md": ledger_page,
    "tune/index.md": tune_page,
}


def schema_page(title: str, introduction: str, schema: Schema) -> str:
    """A page with one table for the document and one for each object inside it."""
    lines = [f"# {title}", "", introduction, ""]
    top = _resolve(schema, schema)
    lines += _fields(top, schema)
    for path, part in _objects(top, schema, ""):
        lines += ["", f"## `{path}`", ""]
        if text := part.get("description"):
            lines += [str(text), ""]
        lines += _fields(part, schema)
    if examples := top.get("examples"):
        lines += ["", "## Example", "", "```json", json.dumps(examples[0], indent=2), "```"]
    return "\n".join(lines) + "\n"


def _resolve(part: Schema, schema: Schema) -> Schema:
    """Follow ``$ref``; what stands next to it (a description, say) wins."""
    if reference := part.get("$ref"):
        found: Schema = schema
        for key in reference.removeprefix("#/").split("/"):
            found = found[key]
        return {**_resolve(found, schema), **{k: v for k, v in part.items() if k != "$ref"}}
    return part


def _choices(part: Schema, schema: Schema) -> list[Schema]:
    part = _resolve(part, schema)
    options = part.get("anyOf") or part.get("oneOf")
    return [c for option in options for c in _choices(option, schema)] if options else [part]


def _objects(part: Schema, schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Objects with named fields below ``part``, with their paths: ``restart``, ``nodes[].devices``."""
    for name, field in part.get("properties", {}).items():
        shown: list[Schema] = []  # one object, or a list of such: one section
        for choice in _choices(field, schema):
            several = "items" in choice
            for found in _choices(choice["items"] if several else choice, schema):
                if "properties" in found and found not in shown:
                    shown.append(found)
                    place = f"{path}{name}{'[]' * several}"
                    yield place, found
                    yield from _objects(found, schema, f"{place}.")


def _fields(part: Schema, schema: Schema) -> list[str]:
    required = part.get("required", ())
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in part.get("properties", {}).items():
        whole = _resolve(field, schema)
        default = "required" if name in required else _literal(whole.get("default"))
        text = whole.get("description") or next(
            (c["description"] for c in _choices(field, schema) if "description" in c), ""
        )
        if examples := whole.get("examples"):
            text = f"{text} Example: {_literal(examples[0])}".strip()
        kind = " or ".join(dict.fromkeys(_type(c, schema) for c in _choices(field, schema)))
        lines.append(f"| `{name}` | {_cell(kind)} | {_cell(default)} | {_cell(text)} |")
    return lines


def _type(part: Schema, schema: Schema) -> str:
    if "enum" in part:
        return " or ".join(_literal(value) for value in part["enum"])
    if "const" in part:
        return _literal(part["const"])
    if "items" in part:
        items = dict.fromkeys(_type(c, schema) for c in _choices(part["items"], schema))
        return f"list of {' or '.join(items)}"
    kind = part.get("type", "any")
    kinds = [kind] if isinstance(kind, str) else kind
    return " or ".join(kinds) + _range(part)


def _range(part: Schema) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    above = part.get("exclusiveMinimum")
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    if above is not None:
        return f", more than {above:,}" + (f", at most {high:,}" if high is not None else "")
    if low is not None:
        return f", at least {low:,}"
    return f", at most {high:,}" if high is not None else ""


def _literal(value: object) -> str:
    return "" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _cell(text: object) -> str:
    """Text of one cell of a table. In code a bar is a bar; a backslash before it would be shown."""
    parts = " ".join(str(text).split()).split("`")
    return "`".join(part if k % 2 else part.replace("|", "\\|") for k, part in enumerate(parts))


def _command(command: Command, path: list[str]) -> Iterator[str]:
    """A command's section, then those of its subcommands."""
    context = command.context_class(command, info_name=path[-1])
    if command.hidden:
        return
    usage = " ".join([*path, *command.collect_usage_pieces(context)])
    yield from (
        f"{'#' * min(len(path) + 1, 4)} `{' '.join(path)}`",
        "",
        (command.help or "").replace("\b", ""),
        "",
    )
    yield from ("```text", usage, "```", "")
    rows = [row for parameter in command.params if (row := _parameter(parameter, context))]
    if rows:
        yield from ("| argument or option | meaning |", "|---|---|", *rows, "")
    # A group lists its commands by their names as typed.
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(inner, [*path, name])


def _parameter(parameter: Parameter, context: Context) -> str | None:
    from unidle.cli.help import described

    row = described(parameter, context)
    if row is None:
        return None if getattr(parameter, "hidden", False) else f"| `{parameter.make_metavar(context)}` | |"
    return f"| {_cell(f'`{row[0]}`')} | {_cell(row[1])} |"


def _exit_codes() -> Iterator[str]:
    from unidle.cli.index import EXIT_CODES

    yield from ("## Exit codes", "", "| code | meaning |", "|--:|---|")
    yield from (f"| {code} | {_cell(text)} |" for code, text in EXIT_CODES.items())
