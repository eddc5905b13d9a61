"""One model and one server of it for all tests of a session: each server costs the import of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fill_run.conftest import groups
from fill_serve.doors import Door, door
from fill_serve.models import write_model

__all__ = ["groups"]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the model ``tiny`` and of the socket ``bubbles``."""
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="session")
def reference(place: Path) -> Any:
    return write_model(place / "tiny", "llama")


@pytest.fixture(scope="session")
def served(place: Path, reference: Any) -> Iterator[Door]:
    options = ("--chunk-tokens", "16", "--batch", "16", "--most-waiting", "12")
    with door(place / "tiny", place / "log", *options, "--bubbles", str(place / "bubbles"), "--slo-ttft", "1000") as found:  # fmt: skip
        yield found
