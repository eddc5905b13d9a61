"""Whatever a file holds: a job, or one error of one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, load_fleet
from unidle.files.job import job_from_mapping, load_job
from unidle.fleet import Fleet
from unidle.jobs import JobSpec

FIELDS = [
    *JobSpec.__dataclass_fields__,
    "checkpoint",
    "progress",
    "tp",
    "path",
    "pattern",
    "max",
    "on",
    "memory",
]
SCRAPS = [
    *FIELDS, "nodes", "tiers", "links", "id", "parent", "devices", "count", "kind", "n[1-3]", "n[3-1]", "[", "]", "{", "}",
    ": ", ", ", "\n", "\n  ", "- ", "&a ", "*a", "<<", "!!str ", "!x ", "'", '"', "|\n", ">\n ", "# ", "---\n", "...\n",
    "%YAML 1.2\n", "? ", "\t", "~", "0", "-1", "1e9", ".nan", "3.5", "true", "a", "é", "\x00", "\u2028", "\\ud800", "\ufeff",
]  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=15,
)
soup = st.lists(st.sampled_from(SCRAPS), max_size=30).map("".join)
content = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(lambda text: text.encode()),
    soup.map(lambda text: text.encode()),
    soup.map(lambda text: b"command: [a]\n" + text.encode()),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.integers(1, 5000).map(lambda n: b"[" * n),
    st.integers(1, 500).map(lambda n: b"a: &a {b: &b [" * n),
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check_error(error: BadInput) -> None:
    assert str(error).isprintable()
    assert error.exit_code == 2


@quick
@given(content=content)
@example(b"command: [a]\nenv: {\xed\xa0\x80: x}")
@example(b'command: ["\\ud800"]')
@example(b"command: &c [a]\nenv: *c")
@example(b"? *a\n: b")
@example(b"command: [a, *a]")
@example(b"&a : 1")
@example(b"command: [a]\n*c : 1")
@example(b"---\n...\n")
def test_any_bytes_give_a_job_or_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    try:
        assert isinstance(load_job(path), JobSpec)
    except BadInput as error:
        check_error(error)
    try:
        assert isinstance(load_fleet(path), Fleet)
    except BadInput as error:
        check_error(error)


@quick
@given(data=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), json_values, max_size=4))
@example({"command": ["a"], "env": {"\ud800": "x"}})
@example({"command": ["a"], "ranks": 10**400})
@example({"command": ["a"], "timeout_s": float("nan")})
@example({"command": ["a"], "timeout_s": 10**400})
def test_any_mapping_gives_a_job_or_one_line(tmp_path: Path, data: dict[str, Any]) -> None:
    try:
        assert isinstance(job_from_mapping({"command": ["a"], **data}, "test", tmp_path), JobSpec)
    except BadInput as error:
        check_error(error)
    try:
        fleet_from_mapping({"nodes": [{"id": "n", "devices": {"kind": "cpu"}}], **data}, "test")
    except BadInput as error:
        check_error(error)


@pytest.mark.parametrize("data", [{1: 2}, {"command": ["a"], "env": {1: "x"}}, {"command": [b"a"]}])
def test_mappings_that_no_file_can_hold_are_refused(tmp_path: Path, data: dict[Any, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        job_from_mapping(data, "test", tmp_path)
    check_error(caught.value)
