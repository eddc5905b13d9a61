"""What is trained: the ``train`` section of a span file. Paths in it start from the file's folder."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

FUNCTION_PATTERN = r"^[^\x00-\x1f]+\.py:[A-Za-z_][A-Za-z0-9_.]*$(?!\n)"
Function = Annotated[
    str,
    Meta(
        pattern=FUNCTION_PATTERN,
        max_length=4096,
        examples=["model.py:build"],
        extra={"says": "FILE.py:FUNCTION"},
    ),
]
Dtype = Literal["float64", "float32", "bfloat16"]


class TrainModelPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the model is built: an unmodified nn.Module."""

    build: Annotated[Function, Meta(description="A function that returns the model.")]
    arguments: Annotated[dict[str, Any], Meta(description="What it is called with, by name.")] = {}
    dtype: Annotated[Dtype, Meta(description="Of its parameters.")] = "float32"


class TrainPart(Struct, frozen=True, kw_only=True):
    """The model, its data and its loss; fields that are not known here belong to a run."""

    model: TrainModelPart
    data: Annotated[
        Function | None,
        Meta(description="batch(step, index, size, seed): the input and the target of one microbatch."),
    ] = None
    loss: Annotated[
        Function | None, Meta(description="loss(output, target): a number, the mean over the microbatch.")
    ] = None
