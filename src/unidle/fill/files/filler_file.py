"""The filler file as a type: what runs in the waits of ranks, and within which bounds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from unidle.files.check import convert
from unidle.files.document import Bounds, Document
from unidle.files.load import base_dir_of, load_document
from unidle.files.schema import schema_of
from unidle.files.values import MEMORY_SAYS, MemoryText, memory_bytes
from unidle.fill.fillers.load import OWN
from unidle.fill.runtime.process import FillerOrder

_PATHS: Final = ("out", "prompts", "data", "model", "build", "function")  # arguments that name files
_EXAMPLE: Final = {"filler": "prefill", "arguments": {"out": "answers-{index}.jsonl"}, "memory": "2GB"}


class FillerFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Work that is let in while ranks of training wait."""

    filler: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096,
            description="What runs: prefill, batch, preprocess, train, module:Class, or FILE.py:Class relative to this file. A class "
            "of yours implements unidle.fill.sliced.Sliced.",
            examples=["prefill"],
        ),
    ]  # fmt: skip
    arguments: Annotated[
        dict[str, Any], Meta(description="Arguments of its class. Paths are relative to this file.")
    ] = {}
    ranks: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)] | None,
        Meta(description="Ranks next to which it runs. Default: all."),
    ] = None
    windows: Annotated[
        Literal["hook", "kernel"],
        Meta(
            description="hook: pieces run while the rank shows that it waits (unidle span run, unidle.rank.waiting). kernel: "
            "for ranks that show nothing; the kernel gives the filler what training leaves."
        ),
    ] = "hook"
    piece_ms: Annotated[float, Meta(gt=0, le=1000, description="Longest piece, in milliseconds.")] = 2.0
    memory: Annotated[
        Annotated[int, Meta(ge=1, le=2**60)] | MemoryText,
        Meta(description="Memory of a filler's process; above it, it is ended.", extra={"says": MEMORY_SAYS}),
    ] = "4GB"
    pace: Annotated[
        bool,
        Meta(description="Each piece takes its stated time of waits, for training with `pace: true`."),
    ] = False
    restarts: Annotated[
        int, Meta(ge=0, le=1000, description="How often a filler that failed is started again.")
    ] = 3
    trial: Annotated[
        bool,
        Meta(
            description="At first, fillers run in every second block of steps in random order, until their effect on training is known."
        ),
    ] = True


class FillerRequest(Struct, frozen=True):
    """What a filler file requests."""

    order: FillerOrder
    ranks: tuple[int, ...] | None
    trial: bool


def load_filler(path: str | os.PathLike[str]) -> FillerRequest:
    """The filler file ``path``, YAML or JSON; ``-`` is standard input. Errors: :class:`unidle.errors.BadInput`, with the line."""
    document = load_document(path, what="filler", bounds=Bounds())
    return _request(document, base_dir_of(path))


def _request(document: Document, base: str | os.PathLike[str]) -> FillerRequest:
    if not isinstance(document.data, Mapping):
        raise document.error(
            (), "a filler file must be a mapping of fields", remedy="it has `filler` and `arguments`"
        )
    file = convert(document, FillerFile, what="filler")
    order = FillerOrder(
        _named(document, file.filler, base), {key: _placed(key, value, base) for key, value in file.arguments.items()},
        round(file.piece_ms * 1e6), memory_bytes(file.memory), file.pace, file.windows == "kernel", file.restarts,
    )  # fmt: skip
    return FillerRequest(order, file.ranks, file.trial)


def _named(document: Document, name: str, base: str | os.PathLike[str]) -> str:
    where, _, attribute = name.rpartition(":")
    if name in OWN:
        return name
    if not where or not attribute.isidentifier():
        raise document.error(
            ("filler",), "is no filler", value=name, remedy=f"one of {', '.join(OWN)}, module:Class or FILE.py:Class"
        )  # fmt: skip
    if not where.endswith(".py"):
        return name
    path = str((Path(base) / where).absolute())
    if not Path(path).is_file():
        raise document.error(
            ("filler",), "names no file", value=name, remedy="give its path, relative to the filler file"
        )
    return f"{path}:{attribute}"


def _placed(key: str, value: Any, base: str | os.PathLike[str]) -> Any:
    """A path relative to the file as one that is so everywhere."""
    return str((Path(base) / value).absolute()) if key in _PATHS and isinstance(value, str) else value


def filler_schema() -> dict[str, Any]:
    """The JSON Schema of the filler file."""
    return schema_of(FillerFile, "unidle filler file", _EXAMPLE)
