"""Writes the software bill of materials of each wheel: CycloneDX JSON 1.5, from the lock files.

    python scripts/sbom.py python FILE    of unidle: every package of requirements.lock
    python scripts/sbom.py span FILE      of its extra span: unidle, of the same version
    python scripts/sbom.py native FILE    of its native part: every crate of native/Cargo.lock (needs cargo)

The same lock file and packages give the same bytes: there is no time stamp, and the serial number is made from the
content. Licences are those that the installed packages, or the crates, declare.

``scope`` of a Python package: ``required`` for what `pip install unidle` installs, ``optional`` for what only an extra
needs, ``excluded`` for what is only needed to build and test.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
CARGO_LOCK = ROOT / "native" / "Cargo.lock"
EXTRAS = (
    "polars",
    "postgres",
    "serve",
    "train",
)  # those that `make lock` locks; the extras scope and span are wheels of their own
_PIN = re.compile(r"([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package of the lock. ``marker``: where it applies; ``via``: the packages that need it."""

    name: str
    version: str
    marker: str
    via: tuple[str, ...]

    @property
    def ref(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(text: str) -> list[Pin]:
    """The packages of a requirements file that uv wrote, in its order."""
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        if pin := _PIN.match(line):
            found.append((pin, []))
        elif found and (needed_by := re.match(r"    #(?: via)?\s+(\S.*)", line)):
            found[-1][1].append(needed_by[1])
    return [
        Pin(pin[1], pin[2], pin[3] or "", tuple(name for name in via if name != "via")) for pin, via in found
    ]


def scopes(packages: list[Pin], project: dict[str, Any]) -> dict[str, str]:
    """``required``, ``optional`` or ``excluded`` for the name of each package: the strictest one that holds."""
    needs: dict[str, set[str]] = {}
    for pin in packages:
        for name in pin.via:
            needs.setdefault(name, set()).add(pin.name)
    extras = [entry for name in EXTRAS for entry in project["optional-dependencies"][name]]
    required = _reached([_name(entry) for entry in project["dependencies"]], needs)
    optional = _reached([_name(entry) for entry in extras], needs)
    return {
        pin.name: "required" if pin.name in required else "optional" if pin.name in optional else "excluded"
        for pin in packages
    }


def _reached(start: list[str], needs: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = list(start)
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += needs.get(name, ())
    return seen


def _name(requirement: str) -> str:
    named = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", named[0]).lower() if named else requirement


def _declared(name: str, version: str) -> dict[str, Any]:
    """The licence that the installed package declares; empty for a package or version that is not installed."""
    try:
        told: Any = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return {}
    if told["Version"] != version:
        return {}
    if expression := told.get("License-Expression"):
        return _licensed("expression", str(expression))
    classified = [
        entry.rpartition(" :: ")[2]
        for entry in told.get_all("Classifier") or ()
        if entry.startswith("License :: ")
    ]
    short = (told.get("License") or "").strip()
    if not short or short == "UNKNOWN" or "\n" in short:  # often the whole text of the licence
        short = " AND ".join(classified)
    return _licensed("name", short)


def _licensed(kind: str, text: str) -> dict[str, Any]:
    """``kind``: ``expression`` for text of SPDX, ``name`` for any other."""
    if not text:
        return {}
    return {"licenses": [{"expression": text} if kind == "expression" else {"license": {"name": text}}]}


def python_bom() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = pins(LOCK.read_text(encoding="utf-8"))
    scope = scopes(packages, project)
    main = f"pkg:pypi/unidle@{_version()}"
    components = []
    needs: dict[str, list[str]] = {main: [], **{pin.ref: [] for pin in packages}}
    for pin in packages:
        part: dict[str, Any] = {
            "type": "library", "bom-ref": pin.ref, "name": pin.name, "version": pin.version, "scope": scope[pin.name], "purl": pin.ref,
            **_declared(pin.name, pin.version),
        }  # fmt: skip
        if pin.marker:
            part["properties"] = [{"name": "unidle:marker", "value": pin.marker}]
        components.append(part)
        for other in packages:
            if other.name in pin.via:
                needs[other.ref].append(pin.ref)
        if any(name.startswith("unidle ") and not name.endswith(":dev)") for name in pin.via):
            needs[main].append(pin.ref)
    subject = {"type": "application", "bom-ref": main, "name": "unidle", "version": _version(), "purl": main,
               "licenses": [{"license": {"id": project["license"]}}]}  # fmt: skip
    return _bom(subject, components, needs, LOCK)


def span_bom() -> dict[str, Any]:
    """The packages that it imports are those of unidle, whose own bill lists them."""
    project = tomllib.loads((ROOT / "packaging" / "span" / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    licences = {"licenses": [{"license": {"id": project["license"]}}]}
    own, base = (f"pkg:pypi/{name}@{_version()}" for name in ("unidle-span", "unidle"))
    subject = {
        "type": "library",
        "bom-ref": own,
        "name": "unidle-span",
        "version": _version(),
        "purl": own,
        **licences,
    }
    needed = {"type": "application", "bom-ref": base, "name": "unidle", "version": _version(), "scope": "required",
              "purl": base, **licences}  # fmt: skip
    return _bom(subject, [needed], {own: [base], base: []}, LOCK)


def native_bom() -> dict[str, Any]:
    """Raises subprocess.CalledProcessError where cargo cannot read the crates."""
    done = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", ROOT / "native" / "Cargo.toml"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    crates = {crate["id"]: crate for crate in told["packages"]}
    sums = {
        (crate["name"], crate["version"]): crate.get("checksum")
        for crate in tomllib.loads(CARGO_LOCK.read_text(encoding="utf-8"))["package"]
    }
    refs = {key: f"pkg:cargo/{crate['name']}@{crate['version']}" for key, crate in crates.items()}
    root = told["resolve"]["root"]
    components = []
    for key in sorted(crates, key=lambda key: refs[key]):
        crate = crates[key]
        checksum = sums[crate["name"], crate["version"]]
        part = {
            "type": "library", "bom-ref": refs[key], "name": crate["name"], "version": crate["version"], "purl": refs[key],
            **({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {}),
            **_licensed("expression", (crate["license"] or "").replace("/", " OR ")),
        }  # fmt: skip
        if key == root:
            subject = part | {"type": "application"}
        else:
            components.append(part)
    needs = {
        refs[node["id"]]: [refs[other] for other in node["dependencies"]] for node in told["resolve"]["nodes"]
    }
    return _bom(subject, components, needs, CARGO_LOCK)


def _bom(
    subject: dict[str, Any], components: list[dict[str, Any]], needs: dict[str, list[str]], lock: Path
) -> dict[str, Any]:
    content = {
        "metadata": {
            "component": subject,
            "properties": [
                {"name": "unidle:lock", "value": lock.name},
                {"name": "unidle:lock:sha256", "value": hashlib.sha256(lock.read_bytes()).hexdigest()},
            ],
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(on))} for ref, on in sorted(needs.items())],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    serial = uuid.UUID(bytes=digest[:16], version=4)
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1, **content,
    }  # fmt: skip


def _version() -> str:
    found = re.search(
        r'^__version__ = "([^"]+)"',
        (ROOT / "src" / "unidle" / "__init__.py").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    if found is None:
        raise SystemExit("sbom: src/unidle/__init__.py names no version")
    return found[1]


BOMS = {"python": python_bom, "span": span_bom, "native": native_bom}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write a CycloneDX bill of materials.")
    parser.add_argument("part", choices=tuple(BOMS))
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    try:
        bom = BOMS[chosen.part]()
    except subprocess.CalledProcessError as error:
        print(f"sbom: cargo metadata failed: {error.stderr.strip()}", file=sys.stderr)
        return 1
    chosen.file.write_text(json.dumps(bom, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
