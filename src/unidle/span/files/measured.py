"""Stores measured layers in a span file. The rest of the file, including comments, is unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from unidle.errors import BadInput
from unidle.files.check import convert
from unidle.files.document import Bounds
from unidle.files.load import load_document, read_text
from unidle.files.rewrite import end_of, replace_text, spliced
from unidle.span.files.file import PlanFile
from unidle.span.files.layers import measured_of, no_other_times
from unidle.span.model.profile import Median, Profile, Profiled

HEAD: Final = "# What `unidle span profile` measured. To simulate add stages and microbatches, to plan batch and sites.\n"


def check_file(path: str) -> None:
    """Whether layers can be stored in the file, which need not be there. Errors: :class:`BadInput`."""
    if path == "-":
        raise BadInput("must be a file", field="--write", value=path, remedy="name the span file")
    if Path(path).exists():
        document = load_document(path, what="span", bounds=Bounds())
        no_other_times(document, convert(document, PlanFile, what="span"))
    elif not Path(path).parent.is_dir():
        raise BadInput("there is no such folder", field="--write", value=path, remedy="name another place")


def store_profile(path: str, profile: Profile, how: Mapping[str, Any]) -> None:
    """Write ``layers`` and ``measured`` into a span file; ``how`` they were measured: fields of ``measured``.

    Errors: :class:`BadInput` where the file is torn, no span file, has a cut for another number of layers, or cannot be
    written; then it is as it was.
    """
    check_file(path)
    text = read_text(path, what="span", limit_bytes=Bounds().size_bytes) if Path(path).exists() else HEAD
    replace_text(path, with_layers(text, [layer_data(each) for each in profile.layers], how), _check)


def _check(path: str) -> None:
    """The new text is a span file, and cuts as many layers as it has."""
    document = load_document(path, what="span", bounds=Bounds())
    file = convert(document, PlanFile, what="span")
    measured_of(document, file)
    if file.cut is not None and file.layers is not None and sum(file.cut) != len(file.layers):
        raise BadInput(
            f"has {sum(file.cut)} layers, and {len(file.layers)} were measured", field="cut", value=list(file.cut),
            remedy="change it, or leave it out, and measure again",
        )  # fmt: skip


def with_layers(text: str, layers: list[dict[str, Any]], how: Mapping[str, Any]) -> str:
    """The text of a span file with these layers in place of those that it has, or as further fields."""
    if text.lstrip().startswith("{"):
        data = json.loads(text)
        return json.dumps({**data, "layers": layers, "measured": dict(how)}, indent=2) + "\n"
    lines = "".join(f"\n  - {json.dumps(layer)}" for layer in layers)
    text = with_field(text, "layers", f"layers:{lines}")
    return with_field(text, "measured", f"measured: {json.dumps(dict(how))}")


def with_field(text: str, name: str, new: str) -> str:
    """YAML with ``new`` in place of a field of the file, or as a further one."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == name:
            return spliced(text, key.start_mark.index, end_of(text, value), new)
    return f"{text.rstrip()}\n{new}\n"


def layer_data(each: Profiled) -> dict[str, Any]:
    """A layer as a span file has it."""
    layer = each.layer
    intervals = {"forward": each.forward, "backward": each.backward, "weight": each.weight}
    data: dict[str, Any] = {"name": layer.name} | {
        name: getattr(layer, name)
        for name in ("forward_ns", "backward_ns", "weight_ns", "input_bytes", "kept_bytes")
    }
    if not layer.keeps_input:
        data["keeps_input"] = False
    for name in ("parameters_bytes", "gradient_bytes", "optimizer_bytes"):
        data[name] = getattr(layer, name)
    return data | {"interval_ns": {name: _ends(found) for name, found in intervals.items()}}


def _ends(found: Median) -> list[int]:
    return [found.low, found.high]
