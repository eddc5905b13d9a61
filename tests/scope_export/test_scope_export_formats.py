"""What holds of every format: each profile can be written, and each file says how far it can be trusted."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Callable

import pytest

from scope_export import profiles
from unidle.scope.export import FORMATS, names
from unidle.scope.model import Frame, Profile

MAKERS = (profiles.small, profiles.hostile, profiles.empty, profiles.single, profiles.deep)


def unpacked(name: str, told: bytes) -> str:
    if name == "pprof":
        told = gzip.decompress(told)
    text = told.decode("utf-8", "replace")
    if name == "html":
        data = re.search(r'id="data">([^<]*)<', text)
        assert data
        text += zlib.decompress(base64.b64decode(data[1])).decode()
    return text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_profile_can_be_written_in_every_format(name: str, make: Callable[[], Profile]) -> None:
    first = FORMATS[name].write(make())
    assert first
    assert first == FORMATS[name].write(make()), "the same profile makes the same file"


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "json"])
def test_every_file_carries_the_quality(name: str) -> None:
    text = unpacked(name, FORMATS[name].write(profiles.small()))
    for fact in ("2,030", "99.90 %", "98.50 %", "0.040 %", "0.2 %", "0.8 %", "device kernels", "T0"):
        assert fact in text, fact
    assert "kernel stacks were left out" in text


def test_the_own_format_is_read_back_unchanged() -> None:
    for make in MAKERS:
        assert Profile.from_json(json.loads(FORMATS["json"].write(make()))) == make()


def test_suffixes_and_names_tell_formats_apart() -> None:
    assert len({form.suffix for form in FORMATS.values()}) == len(FORMATS)
    assert all(name == form.name and form.suffix.startswith(".") for name, form in FORMATS.items())
    assert [form.name for form in FORMATS.values() if form.experimental] == ["otlp"]


def test_what_shows_nothing_is_written_as_an_escape() -> None:
    assert names.visible("a\0b\n\ud800\u202e") == "a\\x00b\\x0a\\ud800\\u202e"
    assert names.visible("名前 ünï 🎉") == "名前 ünï 🎉"


def test_frames_are_named_with_their_place() -> None:
    assert names.label(Frame("python", "step", "/a/b.py", 7)) == "step (b.py:7)"
    assert names.label(Frame("python", "step", "/a/b.py", 7), lines=False) == "step (b.py)"
    assert names.label(Frame("native", "mm", "", 0, "libtorch.so")) == "mm (libtorch.so)"
    assert names.label(Frame("kernel", "schedule")) == "schedule (kernel)"
    assert names.label(Frame("wait", "futex")) == "[futex]"
    assert names.label(Frame("native", "")) == "[unknown]"


def test_a_profile_without_samples_claims_no_shares() -> None:
    assert names.quality(profiles.empty())["rooted"] == "no samples"
