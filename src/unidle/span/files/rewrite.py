"""What is written into a span file, which keeps the rest and its comments: measured layers and stages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from unidle.errors import BadInput
from unidle.files.check import convert
from unidle.files.document import Bounds
from unidle.files.load import load_document, read_text
from unidle.files.rewrite import end_of, replace_text, spliced
from unidle.span.files.file import PlanFile, SpanFile
from unidle.span.files.layers import measured_of, no_other_times
from unidle.span.files.setting import setting_of
from unidle.span.model.layers import Median, ModelProfile, ProfiledLayer, StageTimes

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


def store_profile(path: str, profile: ModelProfile, how: Mapping[str, Any]) -> None:
    """Write ``layers`` and ``measured`` into a span file; ``how`` they were measured: fields of ``measured``.

    Errors: :class:`BadInput` where the file is torn, no span file, has a cut for another number of layers, or cannot be
    written; then it is as it was.
    """
    check_file(path)
    text = read_text(path, what="span", limit_bytes=Bounds().size_bytes) if Path(path).exists() else HEAD
    replace_text(path, with_layers(text, [layer_data(each) for each in profile.layers], how), _check_layers)


def _check_layers(path: str) -> None:
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


def layer_data(each: ProfiledLayer) -> dict[str, Any]:
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


def store_stages(path: str, stages: Sequence[StageTimes]) -> None:
    """Write ``stage_ns`` into a span file that is there. Errors: :class:`BadInput`; then the file is as it was."""
    if path == "-":
        raise BadInput("must be a file", field="--write", value=path, remedy="name the span file")
    document = load_document(path, what="span", bounds=Bounds())
    file = convert(document, SpanFile, what="span")
    if file.layers is not None:
        raise document.error(
            ("layers",), "say what stages take", remedy="leave them out, or measure them: unidle span profile FILE"
        )  # fmt: skip
    if file.stages not in (None, len(stages)):
        raise document.error(
            ("stages",), f"the job had {len(stages)}", value=file.stages, remedy="name the file that the job ran from"
        )  # fmt: skip
    times = {
        name: [found.value for each in stages if (found := getattr(each, name)) is not None]
        for name in ("forward", "backward", "weight", "recompute")
    }
    if len(times["recompute"]) != len(stages):  # it was not needed: as long as a forward, as everywhere
        times["recompute"] = times["forward"]
    text = read_text(path, what="span", limit_bytes=Bounds().size_bytes)
    if text.lstrip().startswith("{"):
        new = json.dumps({**json.loads(text), "stage_ns": times}, indent=2) + "\n"
    else:
        new = with_field(text, "stage_ns", f"stage_ns: {json.dumps(times)}")
    replace_text(path, new, _check_stages)


def _check_stages(path: str) -> None:
    setting_of(load_document(path, what="span", bounds=Bounds()))
