"""Modules of ``bench/``, which is no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def bench_module(name: str) -> Any:
    path = Path(__file__).resolve().parent.parent / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"bench{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
