"""The schemas describe every field, and agree with the loader as far as a schema can say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, load_fleet
from unidle.files.job import job_from_mapping, load_job
from unidle.files.load import Bounds, load_document
from unidle.files.schema import fleet_schema, job_schema

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = Draft202012Validator(job_schema())
FLEET = Draft202012Validator(fleet_schema())

CONTRACT = {
    *(
        "name",
        "command",
        "workdir",
        "env",
        "ranks",
        "devices_per_rank",
        "device",
        "queue",
        "priority",
        "user",
    ),
    *("layout", "checkpoint", "progress", "restart", "timeout_s", "price_per_device_hour"),
}


@pytest.mark.parametrize("schema", [job_schema(), fleet_schema()], ids=["job", "fleet"])
def test_a_schema_is_one(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)


def test_the_job_file_has_the_fields_of_the_contract() -> None:
    schema = job_schema()
    assert set(schema["properties"]) >= CONTRACT
    assert schema["required"] == ["command"]
    assert list(schema["$defs"]["LayoutPart"]["properties"]) == ["tp", "dp", "pp"]
    assert list(schema["$defs"]["RestartPart"]["properties"]) == [
        "max",
        "backoff_s",
        "on",
        "policies",
        "warm",
    ]


def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    yield from schema["$defs"].values()


@pytest.mark.parametrize("schema", [job_schema(), fleet_schema()], ids=["job", "fleet"])
def test_every_field_is_described_and_has_an_example_or_a_default(schema: dict[str, Any]) -> None:
    for part in objects(schema):
        assert part["description"]
        assert part["additionalProperties"] is False
        for name, field in part["properties"].items():
            assert field["description"].endswith("."), name
            assert "examples" in field or "default" in field, name
            assert "default" in field or name in part["required"], name


@pytest.mark.parametrize("schema", [job_schema(), fleet_schema()], ids=["job", "fleet"])
def test_the_schema_accepts_its_own_examples_and_defaults(schema: dict[str, Any]) -> None:
    for part in objects(schema):
        for name, field in part["properties"].items():
            validator = Draft202012Validator({**field, "$defs": schema["$defs"]})
            for value in [*field.get("examples", []), *([field["default"]] if "default" in field else [])]:
                assert validator.is_valid(value), (name, value)


def test_the_whole_examples_load(tmp_path: Path) -> None:
    for example in job_schema()["examples"]:
        JOB.validate(example)
        assert job_from_mapping(example, "example", tmp_path).ranks == 4
    for example in fleet_schema()["examples"]:
        FLEET.validate(example)
        assert len(fleet_from_mapping(example, "example").devices()) == 64


def test_the_example_fleets_fit_the_schema() -> None:
    paths = sorted(EXAMPLES.glob("fleet/*.yaml"))
    assert len(paths) >= 2
    for path in paths:
        FLEET.validate(load_document(path, what="fleet", bounds=Bounds()).data)
        assert load_fleet(path).devices()


def test_the_example_jobs_fit_the_schema() -> None:
    for path in sorted(EXAMPLES.glob("*/*.yaml")):
        if path.parent.name not in ("fleet", "profile", "span", "fill") and path.name not in (
            "drill.yaml",
            "signs.yaml",
        ):
            JOB.validate(load_document(path, what="job", bounds=Bounds()).data)
            assert load_job(path).command


# A whole number written as 3.0 is an integer to JSON Schema, but not to the files; it is left out.
ODD = [None, True, -1, 0, 1, 2, 255, 256, 2.5, -0.5, 10**12, "", "a", "A b", "a\n", "SIGKILL", "SIGCHLD", "signal", "2GB", "9B",
       "../x", "~", "(", "gpu", "n[1-2]", "EUR", [], ["a"], [""], ["any", 3], {}, {"a": "b"}, {"RANK": "1"}, {"A": 1}]  # fmt: skip
odd = st.sampled_from(ODD)


def near(schema: dict[str, Any], root: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that fit ``schema`` about as often as not."""
    if "$ref" in schema:
        return near(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, depth)
    good = [st.sampled_from(schema["examples"])] if "examples" in schema else []
    if "enum" in schema:
        good.append(st.sampled_from(schema["enum"]))
    good += [near(member, root, depth + 1) for member in schema.get("anyOf", [])]
    if "minimum" in schema:
        low, high = schema["minimum"], schema["maximum"]
        good.append(st.sampled_from([low, high, low - 1, high + 1]))
    if "properties" in schema:
        fields = {name: near(field, root, depth + 1) for name, field in schema["properties"].items()}
        needed = {name: fields[name] for name in schema["required"]}
        some = st.sampled_from([*fields, "fields"]).flatmap(
            lambda name: st.fixed_dictionaries({**needed, name: fields.get(name, odd)})
        )
        good += [some, some, st.fixed_dictionaries({}, optional=fields)]
    if "items" in schema:
        good.append(st.lists(near(schema["items"], root, depth + 1), max_size=2))
    return st.one_of(*good, odd) if good else odd


def agree(document: Any, validator: Draft202012Validator, load: Any, beyond: tuple[str, ...]) -> None:
    fits, error = validator.is_valid(document), ""
    try:
        load(document)
    except BadInput as refusal:
        error = str(refusal)
    event(f"schema: {fits}, loader: {not error}")
    assert fits == (not error) or (fits and any(words in error for words in beyond)), (document, error)


quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(document=near(job_schema(), job_schema()))
def test_the_job_schema_agrees_with_the_loader(tmp_path: Path, document: Any) -> None:
    if not isinstance(document, dict):
        assert not JOB.is_valid(document)
        return
    document.setdefault("command", ["a"])
    beyond = (
        "program's name is empty",
        "but ranks is",
        "leads outside",
        "such directory",
        "not a regular",
        "from 1 MiB to 1 PiB (got '",
        "parallel groups are not known",
        "included and excluded",
        "has no amount",
        "has this MIG profile",
        "a share is of one device",
        "the gang has ranks 0 to",
        "runs backwards",
        "has the role",
        "is above ranks.max",
        "is no role of this job",
        "is of the whole gang",
        "its devices are gone",
        "the number of restarts is missing",
        "never happens without",
        "is filler, and",
        "is service, and",
        "the job is no service",
    )
    agree(document, JOB, lambda data: job_from_mapping(data, "test", tmp_path), beyond)


@quick
@given(document=near(fleet_schema(), fleet_schema()))
def test_the_fleet_schema_agrees_with_the_loader(document: Any) -> None:
    if not isinstance(document, dict):
        assert not FLEET.is_valid(document)
        return
    document.setdefault("nodes", [{"id": "n1", "devices": {"kind": "cpu"}}])
    beyond = ("no device", "there is no such", "used twice", "must be letters", "cycle", "sum to", "several devices", "parent: the field is missing",
              "addresses for", "more than", "range", "ends where it starts", "at most 1 PiB",
              "give both ends", "the tiers are declared too", "given twice", "names the node itself", "names a tier", "share a name",
              "has ends too", "weekly window", "day of the week", "range of times", "time zone", "members for",
              "needs one of webhook", "is for a webhook only", "names no", "must begin with https", "is not an address", "no user and password",
              "of ASCII", "is set by unidle itself", "is there twice", "at most 1 day",
              "would leave no node", "the fleet has no such node", "a sample period lasts longer", "is for hosts that join",
              "must be two ports", "a node needs up to")  # fmt: skip
    agree(document, FLEET, lambda data: fleet_from_mapping(data, "test"), beyond)
