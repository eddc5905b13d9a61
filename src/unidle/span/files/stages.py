"""Stores measured times of stages in a span file. The rest of the file, including comments, is unchanged."""

from __future__ import annotations

import json
from collections.abc import Sequence

from unidle.errors import BadInput
from unidle.files.check import convert
from unidle.files.document import Bounds
from unidle.files.load import load_document, read_text
from unidle.files.rewrite import replace_text
from unidle.span.files.file import SpanFile
from unidle.span.files.measured import with_field
from unidle.span.files.setting import setting_of
from unidle.span.model.stage_times import StageTimes


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
    replace_text(path, new, _check)


def _check(path: str) -> None:
    setting_of(load_document(path, what="span", bounds=Bounds()))
