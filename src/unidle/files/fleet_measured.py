"""Stores the measurement of a link in a fleet file. The rest of the file, including comments, is unchanged.

The text of one entry of ``links`` is replaced, or one is added; the new text is read as a fleet file before it takes the
place of the old one, whole or not at all.
"""

from __future__ import annotations

import json
from dataclasses import replace

import yaml

from unidle.errors import BadInput
from unidle.files.fleet import BOUNDS, load_fleet
from unidle.files.fleet_text import link_as_data
from unidle.files.load import read_text
from unidle.files.rewrite import end_of, replace_text, spliced
from unidle.fleet import Link


def check_pair(path: str, pair: tuple[str, str]) -> None:
    """Check that the file is a fleet file that declares both ends. Errors: :class:`BadInput`."""
    if path == "-":
        raise BadInput("must be a file", field="--write", value=path, remedy="name the fleet file")
    fleet = load_fleet(path)
    known = {tier.id for tier in fleet.tiers} | {node.id for node in fleet.nodes}
    for end in pair:
        if end not in known:
            raise BadInput(
                f"is no tier or node of {path}",
                field="--pair",
                value=end,
                remedy="`unidle fleet show` lists them",
            )
    if pair[0] == pair[1]:
        raise BadInput("the link ends where it starts", field="--pair", value=pair[0], remedy="name two ends")


def store_link(path: str, link: Link) -> None:
    """Write a measured link into a fleet file; the fabric that it has there stays.

    Errors: :class:`BadInput` where the file is torn, no fleet file, or cannot be written; then it is as it was.
    """
    check_pair(path, (link.a, link.b))
    before = next((each for each in load_fleet(path).links if {each.a, each.b} == {link.a, link.b}), None)
    if before is not None:
        link = replace(link, fabric=before.fabric)
    text = read_text(path, what="fleet", limit_bytes=BOUNDS.size_bytes)
    replace_text(path, with_link(text, link), load_fleet)


def with_link(text: str, link: Link) -> str:
    """The text of a fleet file with a link in place of the one between the same ends, or as a further one."""
    entry = json.dumps(link_as_data(link))
    if text.lstrip().startswith("{"):
        return _in_json(text, link)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    parts = root.value if isinstance(root, yaml.MappingNode) else []
    found = next((value for key, value in parts if key.value == "links"), None)
    if not isinstance(found, yaml.SequenceNode):
        return f"{text.rstrip()}\nlinks:\n  - {entry}\n" if found is None else text
    for node in found.value:
        ends = {value.value for key, value in node.value if key.value in ("a", "b")}
        if ends == {link.a, link.b}:
            return spliced(text, node.start_mark.index, end_of(text, node), entry)
    if found.flow_style:
        at = found.end_mark.index - 1
        return spliced(text, at, at, f"{', ' if found.value else ''}{entry}")
    at = end_of(text, found.value[-1])
    indent = " " * found.start_mark.column
    return spliced(text, at, at, f"\n{indent}- {entry}")


def _in_json(text: str, link: Link) -> str:
    data = json.loads(text)
    others = [each for each in data.get("links", []) if {each.get("a"), each.get("b")} != {link.a, link.b}]
    return json.dumps({**data, "links": [*others, link_as_data(link)]}, indent=2) + "\n"
