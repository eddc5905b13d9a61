"""The fleet file's `hosts`: which devices of hosts that join may be cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unidle.errors import BadInput
from unidle.files.fleet import load_fleet, load_fleet_and_notices
from unidle.fleet import HostDevices, Sharing


def load(place: Path, *rules: dict[str, Any]) -> tuple[HostDevices, ...]:
    file = place / "fleet.yaml"
    file.write_text(json.dumps({"hosts": list(rules)}))
    return load_fleet_and_notices(file, hosts_join=True)[0].host_devices


def test_rules_have_kind_labels_and_how_devices_are_cut(tmp_path: Path) -> None:
    gpu = {"kind": "gpu", "share": {"modes": ["mps", "mig"], "oversubscribe": {"compute": 1.5}}}
    cpu = {"kind": "cpu", "labels": {"rack": "r1"}, "slices_ppm": [250_000, 750_000]}
    assert load(tmp_path, gpu, cpu) == (
        HostDevices("gpu", sharing=Sharing(("mig", "mps"), 1_500_000)),
        HostDevices("cpu", {"rack": "r1"}, (250_000, 750_000)),
    )
    assert load(tmp_path) == ()


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"kind": "cpu", "slices_ppm": [1, 2]}, "hosts.0.slices_ppm: the shares sum to 3"),
        (
            {"kind": "cpu", "share": {"modes": ["mig"]}},
            "hosts.0.share.modes.0: a CPU device cannot be cut so",
        ),
        (
            {"kind": "gpu", "share": {}, "slices_ppm": [500_000, 500_000]},
            "hosts.0.share: the device is cut by slices_ppm",
        ),
        ({"kind": "gpu", "share": {"modes": []}}, "hosts.0.share.modes: names no way"),
        ({"share": {}}, "hosts.0.kind"),
        ({"kind": "npu"}, "hosts.0.kind"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_its_field(
    tmp_path: Path, rule: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        load(tmp_path, rule)
    assert field in refused.value.line().replace("[0]", ".0")


def test_without_hosts_that_join_the_section_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    nodes = [{"id": "n", "devices": {"count": 1, "kind": "cpu"}}]
    file.write_text(json.dumps({"nodes": nodes, "hosts": [{"kind": "cpu", "share": {}}]}))
    with pytest.raises(BadInput, match="is for hosts that join"):
        load_fleet(file)
