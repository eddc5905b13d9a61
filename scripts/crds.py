"""The custom resources of unidle, deploy/kubernetes/crds.yaml, from the types of the file formats.

    python scripts/crds.py            fails where the file is not what the types give
    python scripts/crds.py --write    writes it again

The spec of a Job has the fields of a job file; those of Queue, Topology and FleetPolicy are parts of a fleet file. What a
structural schema of OpenAPI cannot say becomes a rule in CEL, or is left to the controller, which reads the same types:
a field of one of several types, names of a large mapping, and whatever concerns more than one field.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from unidle.files.fleet_objects import POLICY, TOPOLOGY
from unidle.files.schema import fleet_schema, job_schema

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "deploy" / "kubernetes" / "crds.yaml"
GROUP: Final = "unidle.dev"
VERSION: Final = "v1alpha1"
HEAD: Final = "# Made by scripts/crds.py from the types of the file formats: change those.\n"
_MOST_KEYS: Final = 300  # of a mapping whose names a rule checks: the server bounds what rules may cost
_PLAIN: Final = (
    "type", "description", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "maxProperties",
)  # fmt: skip
Schema = dict[str, Any]


def rule(text: str, message: str) -> Schema:
    return {"rule": text, "message": message}


_LINK_RULES = [
    rule("has(self.tier) ? !has(self.a) && !has(self.b) : has(self.a) && has(self.b)",
         "give both ends, a and b, or the kind of tier that it leads up from: tier"),
]  # fmt: skip
_RULES: Final[dict[str, list[Schema]]] = {
    "LinkPart": _LINK_RULES,
    "MeasuredPart": [
        rule(f"self.{field}[0] <= self.{field}[1]", f"{field}: the least is above the most")
        for field in ("gbps", "latency_us", "flow_gbps")
    ],
}
"""By the type's name: what concerns several of its fields."""


class Structural:
    """Turns the JSON Schema of a file into a structural schema of OpenAPI."""

    def __init__(self, whole: Schema) -> None:
        self._parts: Schema = whole["$defs"]

    def of(self, schema: Schema) -> Schema:
        """One node of the schema, with everything below it."""
        if "anyOf" in schema:
            return self._union(schema)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            found = self.of(self._parts[name])
            if name in _RULES:
                found["x-kubernetes-validations"] = _RULES[name]
            return {**found, **({"description": schema["description"]} if "description" in schema else {})}
        found = {key: schema[key] for key in _PLAIN if key in schema}
        if "enum" in found:
            found.setdefault("type", _type_of(found["enum"]))
        for side in ("Minimum", "Maximum"):
            if f"exclusive{side}" in schema:
                found |= {side.lower(): schema[f"exclusive{side}"], f"exclusive{side}": True}
        if schema.get("type") == "integer":
            found["format"] = "int64"
        self._text(schema, found)
        self._parts_of(schema, found)
        default = schema.get("default")
        if default is not None and not isinstance(default, dict):
            found["default"] = default
        return found

    def fields(self, schema: Schema, names: tuple[str, ...]) -> Schema:
        """An object of some of the fields."""
        properties = {name: self.of(schema["properties"][name]) for name in names}
        return {"type": "object", "properties": properties}

    def _union(self, schema: Schema) -> Schema:
        """A field of one type, or null, is optional. One of several types is checked as far as that can be said."""
        branches = [branch for branch in _flat(schema["anyOf"]) if branch.get("type") != "null"]
        rest = {key: schema[key] for key in ("description", "default") if schema.get(key) is not None}
        if len(branches) == 1:
            found = {**self.of(branches[0]), **rest}
            if isinstance(found.get("default"), dict):
                del found["default"]
            return found | ({"nullable": True} if len(branches) < len(schema["anyOf"]) else {})
        types = {branch.get("type") for branch in branches}
        if types == {"integer", "string"}:
            text, number = (next(b for b in branches if b["type"] == kind) for kind in ("string", "integer"))
            found = {"x-kubernetes-int-or-string": True, **rest}
            found |= {key: number[key] for key in ("minimum", "maximum") if key in number}
            found |= {key: text[key] for key in ("minLength", "maxLength") if key in text}
            pattern = _pattern(text.get("pattern", ""))
            return found | ({"pattern": pattern} if pattern else {})
        return {"x-kubernetes-preserve-unknown-fields": True, **rest}

    def _text(self, schema: Schema, found: Schema) -> None:
        if "pattern" in schema and (pattern := _pattern(schema["pattern"])):
            found["pattern"] = pattern

    def _parts_of(self, schema: Schema, found: Schema) -> None:
        if "properties" in schema:
            found["properties"] = {name: self.of(part) for name, part in schema["properties"].items()}
            if schema.get("required"):
                found["required"] = schema["required"]
        elif isinstance(schema.get("additionalProperties"), dict):
            found["additionalProperties"] = self.of(schema["additionalProperties"])
            names = schema.get("propertyNames", {})
            pattern = _pattern(names.get("pattern", ""))
            if pattern and schema.get("maxProperties", _MOST_KEYS + 1) <= _MOST_KEYS:
                wrong = f"a name has to match {pattern}"
                found["x-kubernetes-validations"] = [
                    rule(f"self.all(name, name.matches({_quoted(pattern)}))", wrong)
                ]
        if "items" in schema:
            found["items"] = self.of(schema["items"])
        elif "prefixItems" in schema:  # each of one type here
            found["items"] = self.of(schema["prefixItems"][0])


def _flat(branches: list[Schema]) -> list[Schema]:
    """Branches of branches."""
    return [
        leaf for branch in branches for leaf in (_flat(branch["anyOf"]) if "anyOf" in branch else [branch])
    ]


def _type_of(values: list[Any]) -> str:
    return {str: "string", bool: "boolean", int: "integer", float: "number"}[type(values[0])]


def _pattern(text: str) -> str:
    """The pattern for Go's regular expressions, which look at no text ahead: without that it takes more, never less."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", r"\\x{\1}", text.replace(r"$(?!\n)", "$"))
    while found := re.search(r"\(\?[!=]", text):
        begin = found.start()
        end, depth = begin + 1, 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0) if text[end - 1] != "\\" else 0
            end += 1
        text = text[:begin] + text[end:]
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_CONDITIONS: Final[Schema] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {"type": "string", "maxLength": 1024, "minLength": 1},
            "message": {"type": "string", "maxLength": 32768},
        },
    },
}


def _status(**fields: str) -> Schema:
    """Plain fields, each with its type, next to conditions."""
    properties: Schema = {name: {"type": kind} for name, kind in fields.items()}
    properties |= {"observedGeneration": {"type": "integer", "format": "int64"}, "conditions": _CONDITIONS}
    return {"type": "object", "properties": properties}


def _status_in_use(**fields: str) -> Schema:
    """As :func:`_status`, of a part of a fleet file."""
    status = _status(**fields)
    status["properties"]["inUse"] = _IN_USE
    return status


_IN_USE: Final[Schema] = {
    "type": "object",
    "description": "The spec that was accepted last: it stays in use while a later one is refused.",
    "x-kubernetes-preserve-unknown-fields": True,
}


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


_ACCEPTED: Final = _column("Accepted", ".status.conditions[?(@.type=='Accepted')].status")
_WHY: Final = _column("Why", ".status.conditions[?(@.type=='Accepted')].message", wide=True)
_AGE: Final = _column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True)
class Names:
    """What a kind is called."""

    kind: str
    plural: str
    short: str
    namespaced: bool = False


def definition(names: Names, about: str, spec: Schema, status: Schema, columns: list[Schema]) -> Schema:
    """One CustomResourceDefinition."""
    fields = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    properties = {**fields, "spec": spec, "status": status}
    whole = {"type": "object", "description": about, "required": ["spec"], "properties": properties}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [*columns, _AGE],
        "schema": {"openAPIV3Schema": whole},
    }
    called = {
        "kind": names.kind,
        "listKind": f"{names.kind}List",
        "plural": names.plural,
        "singular": names.kind.lower(),
        "shortNames": [names.short],
        "categories": ["unidle"],
    }
    scope = "Namespaced" if names.namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "unidle"}},
        "spec": {"group": GROUP, "scope": scope, "names": called, "versions": [version]},
    }


def job() -> Schema:
    whole = job_schema()
    spec = Structural(whole).of(
        {key: whole[key] for key in ("type", "description", "properties", "required")}
    )
    spec["x-kubernetes-validations"] = [
        rule(
            "self == oldSelf",
            "a job cannot be changed once it was submitted: delete it, and submit another one",
        )
    ]
    status = _status(job="string", state="string", attempt="integer", ranks="string", step="integer", message="string",
                     startedAt="string", endedAt="string")  # fmt: skip
    columns = [
        _column("State", ".status.state"),
        _column("Ranks", ".status.ranks"),
        _column("Step", ".status.step", "integer"),
        _column("Attempt", ".status.attempt", "integer", wide=True),
        _column("Queue", ".spec.queue"),
        _column("Why", ".status.message", wide=True),
    ]
    return definition(Names("Job", "jobs", "ujob", True), "A job file as an object.", spec, status, columns)


def queue() -> Schema:
    whole = fleet_schema()
    part = whole["$defs"]["QueuePart"]
    names = tuple(name for name in part["properties"] if name != "name")  # that is metadata.name
    spec = Structural(whole).fields(part, names)
    columns = [
        _column("Parent", ".spec.parent"),
        _column("Weight", ".spec.weight", "number"),
        _column("Kind", ".spec.kind"),
        _column("Running", ".status.running", "integer"),
        _column("Waiting", ".status.waiting", "integer"),
        _ACCEPTED,
        _WHY,
    ]
    status = _status_in_use(running="integer", waiting="integer")
    about = "A queue of a fleet file, named by the object."
    return definition(Names("Queue", "queues", "uq"), about, spec, status, columns)


def topology() -> Schema:
    whole = fleet_schema()
    spec = Structural(whole).fields(whole, TOPOLOGY)
    spec["x-kubernetes-validations"] = [
        rule("!has(self.tiers) || size(self.tiers) == 0 || !has(self.topology) || !has(self.topology.labels)",
             "the tiers are declared too: keep one, tiers or topology.labels"),
    ]  # fmt: skip
    status = _status_in_use(tiers="integer", nodes="integer")
    columns = [
        _ACCEPTED,
        _column("Tiers", ".status.tiers", "integer"),
        _column("Nodes", ".status.nodes", "integer"),
        _WHY,
    ]
    about = "The network tree and the links of a fleet file."
    return definition(Names("Topology", "topologies", "utopo"), about, spec, status, columns)


def fleet_policy() -> Schema:
    whole = fleet_schema()
    spec = Structural(whole).fields(whole, POLICY)
    about = "The policies of a fleet file."
    return definition(
        Names("FleetPolicy", "fleetpolicies", "upolicy"), about, spec, _status_in_use(), [_ACCEPTED, _WHY]
    )


class _Plain(yaml.SafeDumper):
    """Writes what is there twice twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def text() -> str:
    """The whole file."""
    found = [job(), queue(), topology(), fleet_policy()]
    return HEAD + yaml.dump_all(
        found, Dumper=_Plain, sort_keys=False, width=150, explicit_start=True, allow_unicode=True
    )


def main() -> int:
    if "--write" in sys.argv[1:]:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(text())
        return 0
    if FILE.exists() and FILE.read_text() == text():
        return 0
    print(
        f"{FILE.relative_to(ROOT)} is not what the types give; run python scripts/crds.py --write",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
