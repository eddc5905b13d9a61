"""OTLP profiles, read by the classes that OpenTelemetry's own package generates from its protocol files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scope_export import profiles, readers
from unidle.scope.export import otlp
from unidle.scope.model import Profile

READ = """
import json, sys
from opentelemetry.proto.profiles.v1development import profiles_pb2
data = profiles_pb2.ProfilesData()
data.ParseFromString(open(sys.argv[1], "rb").read())
d = data.dictionary
text = lambda n: d.string_table[n]
def unknown(m):
    from google.protobuf.unknown_fields import UnknownFieldSet
    found = len(UnknownFieldSet(m))
    for _, v in m.ListFields():
        for one in v if hasattr(v, "__len__") and not isinstance(v, (str, bytes)) else [v]:
            if hasattr(one, "ListFields"): found += unknown(one)
    return found
def value(v): return getattr(v, v.WhichOneof("value"))
def attributes(ns): return {text(d.attribute_table[n].key_strindex): value(d.attribute_table[n].value) for n in ns}
def stack(n):
    rows = []
    for at in d.stack_table[n].location_indices:
        l = d.location_table[at]
        f = d.function_table[l.lines[0].function_index]
        rows.append([text(f.name_strindex), text(f.filename_strindex), l.lines[0].line, attributes(l.attribute_indices).get("profile.frame.type")])
    return rows
out = []
for r in data.resource_profiles:
    for s in r.scope_profiles:
        for p in s.profiles:
            out.append({"resource": {a.key: value(a.value) for a in r.resource.attributes}, "scope": {a.key: value(a.value) for a in s.scope.attributes},
              "type": text(p.sample_type.type_strindex), "unit": text(p.sample_type.unit_strindex), "at": p.time_unix_nano, "id": len(p.profile_id),
              "samples": [{"stack": stack(x.stack_index), "values": list(x.values), **attributes(x.attribute_indices)} for x in p.samples]})
zero = all(t[0].ByteSize() == 0 for t in (d.mapping_table, d.location_table, d.function_table, d.link_table, d.attribute_table, d.stack_table))
print(json.dumps({"profiles": out, "zero": zero and d.string_table[0] == "", "unknown": unknown(data)}))
"""


def read(profile: Profile, tmp_path: Path) -> Any:
    path = tmp_path / "profile.otlp.pb"
    path.write_bytes(otlp.write(profile))
    return json.loads(readers.in_python(READ, path))


def test_opentelemetrys_own_classes_find_the_same_times(tmp_path: Path) -> None:
    profile = profiles.small()
    told = read(profile, tmp_path)
    assert told["zero"], "number 0 of each table is the empty row"
    assert told["unknown"] == 0
    sums: dict[str, int] = {}
    for row in told["profiles"]:
        sums[row["type"]] = sums.get(row["type"], 0) + sum(sum(s["values"]) for s in row["samples"])
    for name, state in (("cpu", "on"), ("off_cpu", "off"), ("cpu_wait", "runq")):
        assert sums[name] == sum(s.ns for s in profile.samples if s.state == state)
    assert sums["inuse_space"] == 6_000_000
    assert sums["alloc_space"] == 18_000_000


def test_stacks_are_leaf_first_with_kinds_lines_and_threads(tmp_path: Path) -> None:
    told = read(profiles.small(), tmp_path)
    (cpu,) = [r for r in told["profiles"] if r["type"] == "cpu" and r["resource"]["process.pid"] == 100]
    assert cpu["resource"]["unidle.rank"] == 0
    assert cpu["resource"]["process.runtime.version"] == "3.11"
    assert cpu["at"] == profiles.WALL
    assert cpu["id"] == 16
    sample = cpu["samples"][0]
    assert sample["thread.id"] == 100
    assert sample["thread.name"] == "python"
    assert sample["stack"][0][:1] + sample["stack"][0][3:] == ["mkl_blas_avx512_sgemm_kernel", "native"]
    assert sample["stack"][-1] == ["<module>", "/app/train.py", 88, "cpython"]


def test_it_says_that_it_is_experimental_and_how_good_it_is(tmp_path: Path) -> None:
    scope = read(profiles.small(), tmp_path)["profiles"][0]["scope"]
    assert "v1.10.0" in scope["unidle.experimental"]
    assert scope["unidle.merge_mismatch"] == "0.040 %"


@pytest.mark.parametrize(
    "make", [profiles.hostile, profiles.empty, profiles.single, profiles.deep], ids=lambda make: make.__name__
)
def test_opentelemetrys_own_classes_read_the_edges(make: Callable[[], Profile], tmp_path: Path) -> None:
    told = read(make(), tmp_path)
    time = [s for row in told["profiles"] if row["unit"] == "nanoseconds" for s in row["samples"]]
    assert len(time) == len(make().samples)
