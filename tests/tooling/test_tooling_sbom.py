"""The bills of materials: every entry of a lock file, with its version and its address as a package, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import needs

ROOT = Path(__file__).resolve().parents[2]


def written(part: str, place: Path) -> dict[str, Any]:
    files = []
    for name in ("a.json", "b.json"):
        files.append(place / name)
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "sbom.py", part, files[-1]], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    first, second = (file.read_text() for file in files)
    assert first == second  # the same lock file, the same bytes
    assert str(ROOT) not in first and "://" not in first
    found: dict[str, Any] = json.loads(first)
    return found


@pytest.fixture(scope="module")
def python_bom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return written("python", tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def native_bom(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return written("native", tmp_path_factory.mktemp("native"))


def check_form(bom: dict[str, Any]) -> None:
    """What CycloneDX 1.5 requires of the parts that are used."""
    assert (bom["bomFormat"], bom["specVersion"], bom["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bom["serialNumber"])
    assert set(bom) == {
        "bomFormat", "specVersion", "version", "serialNumber", "metadata", "components", "dependencies",
    }  # fmt: skip
    parts = [bom["metadata"]["component"], *bom["components"]]
    refs = [part["bom-ref"] for part in parts]
    assert len(set(refs)) == len(refs)
    for part in parts:
        assert part["type"] in ("library", "application")
        assert part["purl"] == part["bom-ref"]
        assert re.fullmatch(r"pkg:(pypi|cargo)/[A-Za-z0-9._-]+@[A-Za-z0-9.+!_-]+", part["purl"])
        assert part["purl"].endswith(f"/{part['name']}@{part['version']}")
        for entry in part.get("licenses", ()):
            text = entry["expression"] if "expression" in entry else next(iter(entry["license"].values()))
            assert text and text != "UNKNOWN" and text.isprintable()
        for entry in part.get("hashes", ()):
            assert entry["alg"] == "SHA-256" and re.fullmatch(r"[0-9a-f]{64}", entry["content"])
    assert sorted(entry["ref"] for entry in bom["dependencies"]) == sorted(refs)
    assert {ref for entry in bom["dependencies"] for ref in entry["dependsOn"]} <= set(refs)


def test_the_python_bill_lists_every_package_of_the_lock_and_no_other(python_bom: dict[str, Any]) -> None:
    check_form(python_bom)
    lock = (ROOT / "requirements.lock").read_text()
    pinned = [
        line.split(" ")[0].split("==") for line in lock.splitlines() if "==" in line and line[0].isalpha()
    ]
    assert sorted((part["name"], part["version"]) for part in python_bom["components"]) == sorted(
        (name, version) for name, version in pinned
    )


def test_the_bill_of_the_extra_names_unidle_in_the_same_version(
    tmp_path: Path, python_bom: dict[str, Any]
) -> None:
    bom = written("span", tmp_path)
    check_form(bom)
    assert bom["metadata"]["component"]["name"] == "unidle-span"
    assert [part["purl"] for part in bom["components"]] == [python_bom["metadata"]["component"]["purl"]]


def test_a_package_is_required_optional_or_only_for_the_tests(python_bom: dict[str, Any]) -> None:
    scope = {part["name"]: part["scope"] for part in python_bom["components"]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for requirement in project["project"]["dependencies"]:
        named = re.match(r"[\w-]+", requirement)
        assert named and scope[named[0]] == "required"
    assert scope["pygments"] == "required"  # of rich
    assert scope["torch"] == scope["triton"] == scope["psycopg-binary"] == "optional"
    assert scope["pytest"] == scope["iniconfig"] == scope["ruff"] == "excluded"
    needs_of = {entry["ref"]: entry["dependsOn"] for entry in python_bom["dependencies"]}
    direct = {
        ref.partition("/")[2].partition("@")[0]
        for ref in needs_of[python_bom["metadata"]["component"]["purl"]]
    }
    assert {"msgspec", "numpy", "torch", "psycopg"} <= direct and not {"pytest", "pygments"} & direct


def test_licences_are_known_for_what_is_installed(python_bom: dict[str, Any]) -> None:
    known = {part["name"]: part["licenses"] for part in python_bom["components"] if "licenses" in part}
    assert known["hypothesis"] and known["msgspec"] and known["numpy"]
    assert len(known) > 80


@needs.cargo
def test_the_native_bill_lists_every_crate_of_the_lock_with_its_sum(native_bom: dict[str, Any]) -> None:
    check_form(native_bom)
    locked = tomllib.loads((ROOT / "native" / "Cargo.lock").read_text())["package"]
    wanted = {(crate["name"], crate["version"], crate["checksum"]) for crate in locked if "checksum" in crate}
    assert {
        (part["name"], part["version"], part["hashes"][0]["content"]) for part in native_bom["components"]
    } == wanted
    assert all(part["licenses"] for part in native_bom["components"])
    assert native_bom["metadata"]["component"]["name"] == "unidle-scope"
