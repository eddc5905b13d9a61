"""Queues, the network and policies of a fleet as objects of a cluster: applied with kubectl, taken live, refused with the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import unidle
from kube.cluster import ROOT, Cluster
from kube.kube_site import KubeSite
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]

CRDS = ROOT / "deploy" / "kubernetes" / "crds.yaml"
KINDS = {
    "Queue": "queues.unidle.dev",
    "Topology": "topologies.unidle.dev",
    "FleetPolicy": "fleetpolicies.unidle.dev",
}
SLEEPS = ["sh", "-c", "sleep 600"]


class Declared:
    """Objects of one cluster, and the controller that reads them."""

    def __init__(self, cluster: Cluster, site: KubeSite) -> None:
        self.cluster, self.site = cluster, site

    def apply(self, kind: str, name: str, **spec: Any) -> None:
        told = {"apiVersion": "unidle.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.cluster.kubectl("apply", "-f", "-", told=told)

    def delete(self, kind: str, name: str) -> None:
        self.cluster.kubectl("delete", KINDS[kind], name, "--timeout=30s")

    def status(self, kind: str, name: str) -> dict[str, Any]:
        return dict(self.cluster.get(KINDS[kind], name).get("status", {}))

    def accepted(self, kind: str, name: str, generation: int | None = None) -> dict[str, Any]:
        """The condition, once it is that of the object as it is now."""

        def look() -> dict[str, Any] | None:
            found = self.cluster.get(KINDS[kind], name)
            wanted = found["metadata"]["generation"] if generation is None else generation
            for one in found.get("status", {}).get("conditions", ()):
                if one["type"] == "Accepted" and one["observedGeneration"] == wanted:
                    return dict(one)
            return None

        found = wait_until(look, 60, f"a condition of {kind} {name}; {self.site.errors()}")
        assert found is not None
        return found

    def is_accepted(self, kind: str, name: str) -> bool:
        return self.accepted(kind, name)["status"] == "True"

    def queues(self) -> set[str]:
        return {spec.name for spec in self.site.view().fleet.queues}

    def shows(self, what: str, look: Any) -> None:
        wait_until(look, 30, f"{what}; {self.site.errors()}")


@pytest.fixture
def declared(own_cluster: Cluster, tmp_path: Path) -> Iterator[Declared]:
    own_cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    for kind in KINDS.values():
        own_cluster.kubectl("wait", f"crd/{kind}", "--for=condition=Established", "--timeout=60s")
        own_cluster.kubectl("delete", kind, "--all")
    site = KubeSite(own_cluster, tmp_path)
    site.serve("--cpu-devices", 2)
    yield Declared(own_cluster, site)
    site.close()
    for kind in KINDS.values():
        own_cluster.kubectl("delete", kind, "--all")


def test_queues_are_those_of_objects_within_seconds(declared: Declared) -> None:
    assert declared.queues() == set()
    declared.apply("Queue", "research", weight=2)
    declared.apply("Queue", "nlp", parent="research", limit={"cpu": 1})
    assert declared.is_accepted("Queue", "research")
    assert declared.is_accepted("Queue", "nlp")
    declared.shows("both queues", lambda: declared.queues() == {"research", "nlp"})
    ask = {"queue": "nlp", "devices_per_rank": 1, "device": "cpu"}
    first, second = (declared.site.submit(name, SLEEPS, 1, **ask) for name in ("first", "second"))
    declared.shows("one runs", lambda: declared.status("Queue", "research").get("running") == 1)
    declared.shows("one waits", lambda: declared.status("Queue", "nlp").get("waiting") == 1)
    declared.apply("Queue", "nlp", parent="research")
    declared.shows(
        "both were placed", lambda: all(declared.site.job(job).attempts for job in (first, second))
    )
    for job in (first, second):
        declared.site.cancel(job)
    declared.delete("Queue", "nlp")
    declared.shows("one queue", lambda: declared.queues() == {"research"})


def test_an_object_that_is_wrong_changes_nothing_and_says_which_field(declared: Declared) -> None:
    declared.apply("Queue", "a", weight=3)
    declared.apply("Queue", "b", guarantee={"cpu": 1})
    declared.apply("FleetPolicy", "site", prices={"cpu": 2.5}, timezone="Europe/Berlin")
    assert all(
        declared.is_accepted(*one) for one in (("Queue", "a"), ("Queue", "b"), ("FleetPolicy", "site"))
    )
    before = declared.site.view().fleet
    declared.apply("Queue", "b", guarantee={"cpu": 2}, limit={"cpu": 1})
    declared.apply("Queue", "c", parent="nothing")
    declared.apply("FleetPolicy", "site", prices={"cpu": 9.5}, timezone="Mars/Base")
    for kind, name, field in (
        ("Queue", "b", "spec."),
        ("Queue", "c", "spec.parent"),
        ("FleetPolicy", "site", "spec.timezone"),
    ):
        found = declared.accepted(kind, name)
        assert (found["status"], found["reason"]) == ("False", "Invalid")
        assert field in found["message"]
        assert ";" in found["message"]  # the remedy
        declared.shows("its Event", lambda kind=kind, name=name: _warned(declared, kind, name))  # type: ignore[misc]
    assert declared.status("FleetPolicy", "site")["inUse"]["prices"] == {"cpu": 2.5}
    after = declared.site.view().fleet
    assert (after.queues, after.prices_per_device_hour, after.zone) == (
        before.queues, before.prices_per_device_hour, before.zone,
    )  # fmt: skip
    assert before.prices_per_device_hour == {"cpu": 2.5}
    declared.apply("Queue", "nothing", weight=1)
    declared.shows("c is accepted with its parent", lambda: declared.is_accepted("Queue", "c"))
    declared.site.kill_controller()
    declared.site.serve("--cpu-devices", 2)
    declared.shows("the same after a restart", lambda: declared.queues() == {"a", "b", "c", "nothing"})
    assert declared.site.view().fleet.prices_per_device_hour == {"cpu": 2.5}
    assert not declared.is_accepted("FleetPolicy", "site")


def _warned(declared: Declared, kind: str, name: str) -> bool:
    """Whether `kubectl describe` shows an Event with the words of the object's condition."""
    found = declared.accepted(kind, name)
    lines = declared.cluster.kubectl("describe", KINDS[kind], name).partition("Events:")[2].splitlines()
    events = [" ".join(line.split()) for line in lines]
    return any(
        line.startswith(f"Warning {found['reason']} ") and line.endswith(" ".join(found["message"].split()))
        for line in events
    )


def test_only_the_oldest_policy_counts(declared: Declared) -> None:
    declared.apply("FleetPolicy", "z-first", currency="EUR")
    assert declared.is_accepted("FleetPolicy", "z-first")
    wait_until(lambda: _age_differs(declared), 30, "the clock's next second")
    declared.apply("FleetPolicy", "a-second", currency="CHF")
    found = declared.accepted("FleetPolicy", "a-second")
    assert (found["status"], found["reason"]) == ("False", "NotUsed")
    assert "z-first" in found["message"]
    declared.shows("the first", lambda: declared.site.view().fleet.currency == "EUR")
    declared.delete("FleetPolicy", "z-first")
    declared.shows("the second", lambda: declared.site.view().fleet.currency == "CHF")
    assert declared.is_accepted("FleetPolicy", "a-second")


def _age_differs(declared: Declared) -> bool:
    made = str(declared.cluster.get(KINDS["FleetPolicy"], "z-first")["metadata"]["creationTimestamp"])
    probe = declared.cluster.kubectl("create", "namespace", "clock", "--dry-run=server", "-o", "json")
    return str(json.loads(probe)["metadata"]["creationTimestamp"]) > made


def test_a_topology_names_the_labels_of_the_network_and_its_links(declared: Declared) -> None:
    for node, rack in (("n1", "r1"), ("n2", "r2")):
        declared.cluster.kubectl(
            "label", "node", node, f"example.com/rack={rack}", "topology.kubernetes.io/zone=z1", "--overwrite"
        )
    try:
        declared.shows("the zone", lambda: parents(declared)["n1"] == "z1")
        declared.apply("Topology", "fabric", topology={"labels": ["example.com/rack"]},
                       links=[{"a": "r1", "b": "r2", "gbps": 100}, {"a": "r1", "b": "r9", "gbps": 100}])  # fmt: skip
        declared.shows("the racks", lambda: [parents(declared)[n] for n in ("n1", "n2")] == ["r1", "r2"])
        declared.shows("the link", lambda: [link.b for link in declared.site.view().fleet.links] == ["r2"])
        declared.shows("what is missing", lambda: "r9" in declared.accepted("Topology", "fabric")["message"])
        declared.cluster.kubectl("label", "node", "n2", "example.com/rack=r9", "--overwrite")
        declared.shows("a rack that came", lambda: parents(declared)["n2"] == "r9")
        declared.shows("its link", lambda: [link.b for link in declared.site.view().fleet.links] == ["r9"])
        declared.apply(
            "Topology",
            "fabric",
            tiers=[{"id": "top", "kind": "site"}, {"id": "r9", "kind": "rack", "parent": "top"}],
        )
        declared.shows(
            "declared tiers", lambda: {tier.id for tier in declared.site.view().fleet.tiers} == {"top", "r9"}
        )
        declared.cluster.kubectl("label", "node", "n1", "unidle.dev/tier=r9", "--overwrite")
        declared.shows("a node's label", lambda: parents(declared)["n1"] == "r9")
        lines = json.loads(unidle("fleet", "--store", declared.site.store, "--json").stdout)
        assert "network: object Topology fabric" in lines["sources"]
        [n1] = [line for line in lines["devices"] if line["device"] == "n1/0"]
        assert "rack: declared, label unidle.dev/tier" in n1["sources"]
        declared.delete("Topology", "fabric")
        declared.shows("the zone again", lambda: parents(declared)["n1"] == "z1")
    finally:
        for node in ("n1", "n2"):
            declared.cluster.kubectl(
                "label", "node", node, "example.com/rack-", "topology.kubernetes.io/zone-", "unidle.dev/tier-"
            )


def parents(declared: Declared) -> dict[str, str]:
    return {node.id: node.parent for node in declared.site.view().fleet.nodes}


def test_a_fleet_file_counts_alone(declared: Declared) -> None:
    declared.apply("Queue", "object")
    assert declared.is_accepted("Queue", "object")
    declared.site.close()
    file = declared.site.place / "fleet.yaml"
    file.write_text("queues: [{name: file}]\n")
    declared.site.serve("--cpu-devices", 2, "--fleet", file)
    declared.shows("the file's", lambda: declared.queues() == {"file"})
    declared.shows(
        "the object's status", lambda: declared.accepted("Queue", "object")["reason"] == "FleetFile"
    )
    assert "--fleet" in declared.accepted("Queue", "object")["message"]
