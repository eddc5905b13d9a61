"""Link classes and bandwidths: declared ones, and what is modelled without them."""

from __future__ import annotations

from unidle.fleet import Device, Fleet, Link, LinkClass, Node, Tier
from unidle.fleet.network import ETHERNET_BPS, GBPS, NVLINK_BPS, PORT_BPS, WAN_BPS, Uplink, network_of


def node(name: str, parent: str, gpus: int = 8, fabric: LinkClass | None = None) -> Node:
    return Node(
        name, parent, tuple(Device(f"{name}/{k}", name, k, "gpu") for k in range(gpus)), fabric=fabric
    )


def ups(fleet: Fleet) -> dict[str, Uplink]:
    return network_of(fleet).up


def test_what_is_not_declared_is_modelled_by_class():
    tiers = (Tier("s", "spine", None, "infiniband"), Tier("l", "leaf", "s"))
    found = ups(Fleet(tiers, (node("a", "l"), node("b", "l"))))
    assert found["a"] == Uplink({"infiniband": 8 * PORT_BPS}, "modelled")
    assert found["l"] == Uplink({"infiniband": 8 * PORT_BPS}, "modelled")  # 2:1
    assert found["s"] == Uplink({"infiniband": WAN_BPS}, "modelled")


def test_without_a_class_links_are_ethernet():
    found = network_of(Fleet((Tier("s", "site"),), (node("a", "s"),)))
    assert found.up["a"].bps == {"ethernet": ETHERNET_BPS}
    assert found.inside_bps["a"] == NVLINK_BPS


def test_a_link_of_one_vertex_goes_before_that_of_its_kind():
    tiers = (Tier("s", "spine", None, "roce"), Tier("l", "leaf", "s"), Tier("m", "leaf", "s"))
    links = (
        Link("", "", 800 * GBPS, tier="leaf"),
        Link("l", "s", 100 * GBPS),
        Link("", "", 200 * GBPS, tier="node", fabric="infiniband"),
    )
    found = ups(Fleet(tiers, (node("a", "l"), node("b", "m")), links))
    assert found["l"] == Uplink({"roce": 100 * GBPS}, "declared")
    assert found["m"] == Uplink({"roce": 800 * GBPS}, "declared")
    assert found["a"] == Uplink({"infiniband": 200 * GBPS}, "declared")


def test_links_of_a_kind_are_for_the_vertices_of_their_class():
    tiers = (
        Tier("s", "site"), Tier("i", "leaf", "s", "infiniband"), Tier("r", "leaf", "s", "roce"), Tier("v", "nvlink", "i"),
    )  # fmt: skip
    classes: tuple[LinkClass, ...] = ("infiniband", "roce")
    links = tuple(Link("", "", (k + 1) * 100 * GBPS, tier="node", fabric=f) for k, f in enumerate(classes))
    found = ups(Fleet(tiers, (node("a", "i"), node("b", "r"), node("c", "v"), node("d", "s")), links))
    assert found["a"] == Uplink({"infiniband": 100 * GBPS}, "declared")
    assert found["b"] == Uplink({"roce": 200 * GBPS}, "declared")
    assert found["c"] == Uplink({"infiniband": 100 * GBPS}, "declared")
    assert found["d"] == Uplink({"ethernet": ETHERNET_BPS}, "modelled")


def test_one_vertex_may_hang_by_two_classes():
    links = (Link("a", "l", 400 * GBPS, fabric="infiniband"), Link("a", "l", 25 * GBPS, fabric="ethernet"))
    found = ups(Fleet((Tier("l", "leaf"),), (node("a", "l"),), links))
    assert found["a"].bps == {"infiniband": 400 * GBPS, "ethernet": 25 * GBPS}


def test_a_link_between_sites_is_the_way_up_of_both():
    links = (Link("east", "west", 40 * GBPS), Link("east", "north", 10 * GBPS))
    tiers = (Tier("east", "site"), Tier("west", "site"), Tier("north", "site"))
    found = ups(Fleet(tiers, (node("a", "east"),), links))
    assert [found[s].bps for s in ("east", "west", "north")] == [
        {"ethernet": 40 * GBPS}, {"ethernet": 40 * GBPS}, {"ethernet": 10 * GBPS}
    ]  # fmt: skip


def test_an_nvlink_domain_has_the_ports_of_its_nodes():
    tiers = (Tier("s", "spine", None, "roce"), Tier("v", "nvlink", "s"))
    found = ups(Fleet(tiers, (node("a", "v", 4), node("b", "v", 4))))
    assert found["a"].bps == {"nvlink": 4 * NVLINK_BPS, "roce": 4 * PORT_BPS}
    assert found["v"].bps == {"roce": 8 * PORT_BPS}


def test_a_tier_of_another_class_ends_a_fabric():
    tiers = (Tier("s", "spine", None, "ethernet"), Tier("l", "leaf", "s", "infiniband"))
    found = ups(Fleet(tiers, (node("a", "l"),)))
    assert set(found["a"].bps) == {"infiniband"} and set(found["l"].bps) == {"ethernet"}


def test_a_node_may_differ_from_its_tier():
    found = ups(Fleet((Tier("l", "leaf", None, "infiniband"),), (node("a", "l", fabric="ethernet"),)))
    assert set(found["a"].bps) == {"ethernet"}
