"""From the name of a filler to the object."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from unidle.errors import BadInput
from unidle.fill.sliced import Sliced

OWN: Final = {
    "prefill": "unidle.fill.fillers.prefill:Prefill",
    "batch": "unidle.fill.fillers.batch:BatchInference",
    "preprocess": "unidle.fill.fillers.preprocess:Preprocess",
    "train": "unidle.fill.fillers.training:SmallTraining",
}
"""Fillers that unidle has, by their short names."""


def load(name: str, arguments: Mapping[str, Any]) -> Sliced:
    """Make the filler ``name``: a short name, ``module:Class`` or ``/path/file.py:Class``. Errors: BadInput."""
    found = _class_of(name)
    try:
        made = found(**arguments)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"cannot be made: {type(error).__name__}: {error}", field="filler", value=name, remedy="correct `arguments`, or the filler"
        ) from error  # fmt: skip
    missing = [each for each in ("finished", "next_piece", "run", "give_up") if not hasattr(made, each)]
    if missing:
        raise BadInput(
            f"has no {missing[0]}", field="filler", value=name, remedy="implement unidle.fill.sliced.Sliced"
        )
    return cast("Sliced", made)


def _class_of(name: str) -> Any:
    where, _, attribute = OWN.get(name, name).rpartition(":")
    if not where or not attribute:
        raise BadInput(
            "is no filler",
            field="filler",
            value=name,
            remedy=f"one of {', '.join(OWN)}, module:Class or FILE.py:Class",
        )
    try:
        module = _of_file(where) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:
        raise BadInput(
            f"cannot be loaded: {type(error).__name__}: {error}", field="filler", value=name, remedy="correct the path, or the file"
        ) from error  # fmt: skip
    found = getattr(module, attribute, None)
    if not callable(found):
        raise BadInput(f"has no {attribute}", field="filler", value=name, remedy="name a class of that file")
    return found


def _of_file(path: str) -> Any:
    sys.path.append(str(Path(path).absolute().parent))  # what it imports from its own directory
    spec = importlib.util.spec_from_file_location("_unidle_filler", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["_unidle_filler"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_function(where: str) -> Any:
    """The function or class of ``FILE.py:NAME`` or ``module:NAME``, for arguments of fillers. Errors: BadInput."""
    return _class_of(where)
