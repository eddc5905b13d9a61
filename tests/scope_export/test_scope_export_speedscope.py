"""speedscope's files against the JSON schema in speedscope's own package, and against speedscope's importer rules."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import needs
from report.browser import Browser
from scope_export import profiles, readers
from unidle.scope.export import speedscope
from unidle.scope.model import Profile


def told(profile: Profile, **options: Any) -> Any:
    return json.loads(speedscope.write(profile, **options))


@pytest.mark.parametrize(
    "make",
    [profiles.small, profiles.hostile, profiles.empty, profiles.single, profiles.deep],
    ids=lambda make: make.__name__,
)
def test_the_file_holds_to_speedscopes_own_schema(make: Callable[[], Profile]) -> None:
    schema = json.loads((readers.speedscope() / "dist/release/file-format-schema.json").read_text())
    file = told(make())
    jsonschema.Draft7Validator(schema).validate(file)
    frames = len(file["shared"]["frames"])
    for profile in file["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
        assert all(0 <= n < frames for stack in profile["samples"] for n in stack)


def test_each_thread_has_a_profile_of_all_its_time_and_one_of_each_state() -> None:
    profile = profiles.small()
    by_name = {row["name"]: row for row in told(profile)["profiles"]}
    thread = "rank 0 (pid 100), python (tid 100)"
    parts = [by_name[f"{thread}: {state}"] for state in ("on CPU", "off CPU", "waiting for a CPU")]
    assert by_name[f"{thread}: all"]["endValue"] == sum(part["endValue"] for part in parts)
    assert parts[0]["endValue"] == sum(s.ns for s in profile.samples if s.tid == 100 and s.state == "on")
    assert {row["unit"] for row in by_name.values()} == {"nanoseconds", "bytes"}
    assert "rank 0 (pid 100), pt_autograd_0 (tid 101): all" not in by_name, "it was off CPU only"


def test_memory_is_in_bytes_by_process_and_device() -> None:
    by_name = {row["name"]: row for row in told(profiles.small())["profiles"]}
    assert by_name["rank 0 (pid 100), memory of host: live"]["endValue"] == 4_000_000
    assert by_name["rank 0 (pid 100), memory of cuda:0: allocated"]["endValue"] == 2_000_000


def test_without_lines_the_lines_of_a_function_are_one_frame() -> None:
    steps = [f for f in told(profiles.small(), lines=False)["shared"]["frames"] if f["name"] == "train_step"]
    assert steps == [{"name": "train_step", "file": "/app/train.py"}]


@needs.browser
def test_speedscope_itself_opens_the_file(tmp_path: Path) -> None:
    encoded = base64.b64encode(speedscope.write(profiles.small())).decode()
    (tmp_path / "load.js").write_text(f"speedscope.loadFileFromBase64('small.json', '{encoded}')")
    with Browser(needs.chromium() or "", tmp_path / "browser") as page:
        program = readers.speedscope() / "dist/release/index.html"
        page.open(program, f"#localProfilePath={tmp_path / 'load.js'}")
        page.wait("document.body.innerText.includes('rank 0 (pid 100), python (tid 100): all')")
        assert "2,030 samples" in page.run("document.title")
        assert page.problems == []
